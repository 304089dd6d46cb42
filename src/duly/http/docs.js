"use strict";
// Renders /openapi.json: operations by tag, their parameters and types, and a form to try each. No other host is asked.

const METHODS = ["get", "post", "put", "patch", "delete"];
let api;

function element(tag, facts = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...inside.filter((one) => one !== null && one !== undefined));
  return made;
}

// Text with `code` in it.
function prose(text) {
  const parts = (text || "").split("`");
  return element("span", {}, ...parts.map((part, at) => (at % 2 ? element("code", {}, part) : part)));
}

function resolve(schema) {
  return schema && schema.$ref ? schema.$ref.split("/").slice(1).reduce((at, name) => at[name], api) : schema || {};
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return element("a", { href: "#type-" + name }, name);
  }
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return element("span", {}, ...choices.flatMap((one, at) => (at ? [" | ", typeOf(one)] : [typeOf(one)])));
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.type === "array") return element("span", {}, "[", typeOf(schema.items), ", …]");
  if (schema.type === "object" && schema.additionalProperties)
    return element("span", {}, "{…: ", typeOf(schema.additionalProperties), "}");
  return schema.contentEncoding || schema.format || schema.type || "anything";
}

function boundsOf(schema) {
  const told = [];
  for (const one of [schema, ...(schema.anyOf || [])]) {
    if (one.minimum !== undefined) told.push("≥ " + one.minimum);
    if (one.exclusiveMinimum !== undefined) told.push("> " + one.exclusiveMinimum);
    if (one.maximum !== undefined) told.push("≤ " + one.maximum);
    if (one.maxLength !== undefined) told.push("at most " + one.maxLength + " characters");
  }
  if (schema.default !== undefined && schema.default !== null) told.push("default " + JSON.stringify(schema.default));
  return told.join(", ");
}

function descriptionOf(schema) {
  const inner = (schema.anyOf || []).map((one) => one.description).find(Boolean);
  return schema.description || inner || "";
}

function fieldsOf(schema) {
  const known = resolve(schema);
  if (!known.properties) return element("p", {}, typeOf(known));
  const rows = Object.entries(known.properties).map(([name, kind]) =>
    element("tr", {},
      element("td", {}, element("code", {}, name), (known.required || []).includes(name) ? " *" : ""),
      element("td", {}, typeOf(kind)),
      element("td", { class: "dim" }, prose(descriptionOf(kind)), " ", boundsOf(kind))));
  return element("table", {},
    element("thead", {}, element("tr", {}, ...["field", "type", ""].map((text) => element("th", {}, text)))),
    element("tbody", {}, ...rows));
}

function parametersOf(operation) {
  if (!operation.parameters.length) return null;
  const rows = operation.parameters.map((one) =>
    element("tr", {},
      element("td", {}, element("code", {}, one.name), one.required ? " *" : ""),
      element("td", {}, one.in),
      element("td", {}, typeOf(one.schema)),
      element("td", { class: "dim" }, prose(one.description), " ", boundsOf(one.schema))));
  return element("div", {}, element("h4", {}, "Parameters"), element("table", {}, element("tbody", {}, ...rows)));
}

// A value that fits a schema, to begin with.
function example(schema, depth = 0) {
  const known = resolve(schema);
  if (known.default !== undefined && known.default !== null) return known.default;
  if (known.anyOf) return example(known.anyOf[0], depth);
  if (known.enum) return known.enum[0];
  if (known.type === "array") return depth > 3 ? [] : [example(known.items, depth + 1)];
  if (known.type === "integer" || known.type === "number") return known.minimum || 0;
  if (known.type === "boolean") return false;
  if (known.type === "string") return known.contentEncoding ? "aGVsbG8=" : "";
  const required = known.required || [];
  const made = {};
  for (const name of required) made[name] = example(known.properties[name], depth + 1);
  if (!required.length && known.properties && known.properties.payload_text) made.payload_text = "hello";
  return made;
}

function tryForm(path, method, operation) {
  const inputs = operation.parameters.map((one) => {
    const input = element("input", { placeholder: one.required ? "required" : "", "aria-label": one.name });
    return { one, input, row: element("label", {}, element("code", {}, one.name), input) };
  });
  const json = operation.requestBody && operation.requestBody.content["application/json"];
  const body = json ? element("textarea", { "aria-label": "Body", spellcheck: "false" }) : null;
  if (body) body.value = JSON.stringify(example(json.schema), null, 2);
  const answer = element("pre", { hidden: "", "aria-live": "polite" });
  const send = element("button", { type: "button", onclick: () => ask(path, method, inputs, body, answer) }, "Send");
  return element("div", { class: "try" },
    element("h4", {}, "Try it"), ...inputs.map((one) => one.row), body, element("p", {}, send), answer);
}

async function ask(path, method, inputs, body, answer) {
  const query = new URLSearchParams();
  const headers = {};
  for (const { one, input } of inputs) {
    if (one.in === "path") path = path.replace("{" + one.name + "}", encodeURIComponent(input.value));
    else if (input.value === "") continue;
    else if (one.in === "query") query.set(one.name, input.value);
    else headers[one.name] = input.value;
  }
  if (body && body.value.trim()) headers["Content-Type"] = "application/json";
  const options = { method: method.toUpperCase(), headers, body: body && body.value.trim() ? body.value : undefined };
  const address = path + (query.size ? "?" + query : "");
  answer.hidden = false;
  answer.textContent = "…";
  try {
    const got = await fetch(address, options);
    const text = await got.text();
    const kind = got.headers.get("content-type") || "";
    const shown = kind.includes("json") ? JSON.stringify(JSON.parse(text), null, 2) : text;
    answer.textContent = options.method + " " + address + "\n" + got.status + " " + got.statusText + "\n\n" + shown;
  } catch (error) {
    answer.textContent = String(error);
  }
}

function answersOf(operation) {
  const rows = Object.entries(operation.responses).map(([status, told]) => {
    const known = resolve(told);
    const content = Object.entries(known.content || {})[0];
    return element("tr", {},
      element("td", {}, element("code", {}, status)),
      element("td", {}, prose(known.description)),
      element("td", {}, content ? typeOf(content[1].schema) : ""));
  });
  return element("div", {}, element("h4", {}, "Answers"), element("table", {}, element("tbody", {}, ...rows)));
}

function operationOf(path, method, operation) {
  const inside = element("div", { class: "inside" });
  const made = element("details", { class: "operation", id: operation.operationId },
    element("summary", {},
      element("span", { class: "method " + method }, method.toUpperCase()),
      element("code", {}, path),
      element("span", { class: "dim" }, operation.summary)),
    inside);
  made.addEventListener("toggle", () => {
    if (made.open && !inside.childNodes.length) fill(inside, path, method, operation);
  });
  made.dataset.words = [path, method, operation.summary, operation.operationId, operation.description].join(" ").toLowerCase();
  return made;
}

function fill(inside, path, method, operation) {
  const content = operation.requestBody ? Object.entries(operation.requestBody.content) : [];
  inside.append(
    element("p", {}, prose(operation.description || operation.summary + ".")),
    parametersOf(operation) || "",
    ...content.flatMap(([kind, one]) => [element("h4", {}, "Body: " + kind), fieldsOf(one.schema)]),
    answersOf(operation),
    tryForm(path, method, operation));
}

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const one of document.querySelectorAll("details.operation")) {
    const found = words.every((word) => one.dataset.words.includes(word));
    one.hidden = !found;
    document.querySelector('nav a[href="#' + one.id + '"]').hidden = !found;
  }
}

function openNamed() {
  const one = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (one && one.tagName === "DETAILS") one.open = true;
  if (one) one.scrollIntoView();
}

async function start() {
  api = await (await fetch("/openapi.json")).json();
  const main = document.getElementById("main");
  const contents = document.getElementById("contents");
  main.replaceChildren(element("h1", {}, api.info.title), ...api.info.description.split("\n\n").map((text) => element("p", {}, prose(text))));
  for (const tag of api.tags) {
    main.append(element("h2", {}, tag.name), element("p", {}, prose(tag.description)));
    contents.append(element("h2", {}, tag.name));
    for (const [path, methods] of Object.entries(api.paths))
      for (const method of METHODS)
        if (methods[method] && methods[method].tags.includes(tag.name)) {
          main.append(operationOf(path, method, methods[method]));
          contents.append(element("a", { href: "#" + methods[method].operationId }, methods[method].summary));
        }
  }
  main.append(element("h2", {}, "types"));
  for (const [name, schema] of Object.entries(api.components.schemas))
    main.append(element("h3", { id: "type-" + name }, name), element("p", {}, prose(schema.description)), fieldsOf(schema));
  main.append(element("h2", {}, "codes of problems"), element("table", {}, element("tbody", {},
    ...Object.entries(api["x-codes"]).map(([code, text]) => element("tr", {}, element("td", {}, element("code", {}, code)), element("td", {}, prose(text)))))));
  document.getElementById("search").addEventListener("input", (event) => search(event.target.value));
  window.addEventListener("hashchange", openNamed);
  openNamed();
}

start().catch((error) => { document.getElementById("main").textContent = "The description could not be read: " + error; });
