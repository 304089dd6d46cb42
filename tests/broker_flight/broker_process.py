"""A broker in a process of its own, to be killed: `python -m tests.broker_flight.broker_process STORE PORT`."""

from __future__ import annotations

import sys

from duly.serve import Address, Served, run_until_told


def main() -> None:
    served = Served(sys.argv[1], Address(http_port=0, flight_port=int(sys.argv[2])))
    print(served.flight.port, flush=True)
    run_until_told(served)


if __name__ == "__main__":
    main()
