"""Workers: handlers of topics, and what runs them.

workers.py   Workers: what an application binds its handlers to
handler.py   one handler and its settings
run.py       one run of them in this process: claim, hand over, stop
claimer.py   claims for one handler, as many as it has slots free
turns.py     slots and threads, dealt out in turn
job.py       one message in its handler: who may settle it, and how
verdict.py   how a handler's end is answered: ack, nack, bury
threads.py   the threads of sync handlers
tasks.py     the event loop of async handlers
watchdog.py  time limits
mailbox.py   what a run waits on, and signals can reach
signals.py   SIGTERM and SIGINT, while a run has the main thread
"""
