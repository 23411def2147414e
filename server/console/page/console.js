// The console of residentd: reads /api and shows it. Text from the daemon is only ever set as text.
'use strict';

const kFastMs = 2000;      // Status and charts.
const kSlowRounds = 3;     // Everything else, each third time.
const kRowsAtOnce = 100;   // Operators that are shown at first, and that "Show more" adds.
const kTimeoutMs = 8000;

const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat('en');
const exact = (value) => whole.format(Number(value || 0));
const dash = '–';

function bytes(value) {
  let amount = Number(value || 0);
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (amount < 1024) return (unit === 'B' ? exact(amount) : amount.toFixed(2)) + ' ' + unit;
    amount /= 1024;
  }
  return amount.toFixed(2) + ' TiB';
}

function rate(value) {
  if (value >= 1e6) return (value / 1e6).toFixed(2) + ' M';
  if (value >= 1e3) return (value / 1e3).toFixed(2) + ' k';
  return value >= 100 || value === 0 ? value.toFixed(0) : value.toFixed(1);
}

function duration(ms) {
  const seconds = Math.floor(Number(ms || 0) / 1000);
  const days = Math.floor(seconds / 86400);
  const clock = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60]
      .map((part) => String(Math.floor(part)).padStart(2, '0')).join(':');
  return days > 0 ? days + ' d ' + clock : clock;
}

const clock = (ms) =>
    new Date(Number(ms)).toISOString().replace('T', ' ').replace(/\..*/, ' UTC');

// "idle parked" of "STATE_IDLE_PARKED".
const label = (name, prefix) => String(name || '').replace(prefix, '').toLowerCase().replace(/_/g, ' ');

// Makes the table have a row for each item, whose cells are {text, kind} or an element. Rows and
// texts that stay the same are not touched, so that focus and selection are kept.
function fill(tableId, items, toCells, empty) {
  const body = byId(tableId).tBodies[0];
  const columns = byId(tableId).tHead.rows[0].cells.length;
  const rows = items.length > 0 ? items.map(toCells) : [[{text: empty, span: columns}]];
  rows.forEach((cells, index) => {
    let row = body.rows[index];
    if (!row || row.cells.length !== cells.length) {
      const made = document.createElement('tr');
      for (let i = 0; i < cells.length; ++i) {
        const first = i === 0 && !cells[0].span;
        const cell = document.createElement(first ? 'th' : 'td');
        if (first) cell.scope = 'row';
        made.append(cell);
      }
      if (row) row.replaceWith(made); else body.append(made);
      row = made;
    }
    cells.forEach((cell, column) => {
      const td = row.cells[column];
      if (cell.button) {
        let button = td.firstElementChild;
        if (!button) {
          button = document.createElement('button');
          button.type = 'button';
          td.append(button);
        }
        if (button.textContent !== cell.button) button.textContent = cell.button;
        button.onclick = cell.action;
        return;
      }
      const text = String(cell.text ?? '');
      if (td.textContent !== text) td.textContent = text;
      const kind = cell.kind || '';
      if (td.className !== kind) td.className = kind;
      if (cell.span) td.colSpan = cell.span;
    });
  });
  while (body.rows.length > rows.length) body.lastElementChild.remove();
}

const text = (value) => ({text: value});
const number = (value) => ({text: exact(value), kind: 'number'});

let busy = [];  // The share of the last interval, by device.

function showStatus(status) {
  byId('version').textContent = status.version;
  byId('facts').textContent = 'process ' + status.pid + ', up ' + duration(status.uptime_ms) +
      (status.draining ? ', draining' : '') +
      (status.gpu_unavailable_reason ? '. No GPU: ' + status.gpu_unavailable_reason : '');
  fill('device-table', status.devices, (device) => {
    const state = label(device.state, 'STATE_');
    const bad = state === 'unhealthy' || state === 'restarting';
    const share = busy[Number(device.device)];
    return [
      text(device.device), text(device.name + ' (' + device.engine + ')'),
      {text: state + (device.detail ? ': ' + device.detail : ''), kind: bad ? 'bad' : 'good'},
      {text: share === undefined ? dash : (100 * share).toFixed(1) + ' %', kind: 'number'},
      number(device.queued_tasks),
      {text: exact(device.ring.in_flight) + ' of ' + exact(device.ring.slots), kind: 'number'},
      number(device.completed_tasks),
      {text: bytes(device.memory_used_bytes) + ' of ' + bytes(device.memory_total_bytes),
       kind: 'number'},
      number(device.buffers), number(device.generation), number(device.restarts),
    ];
  }, 'There is no device.');
  fill('client-table', status.clients, (client) => [
    text(client.id), text(client.name || dash), text(client.peer), number(client.queued_tasks),
    number(client.completed_tasks), number(client.buffers),
    {text: bytes(client.buffer_bytes), kind: 'number'},
  ], 'There is no client, or this page may not show it.');
}

function chart(name, values, unit, interval) {
  const svg = byId(name + '-chart');
  const captions = {tasks: 'Tasks', received: 'Received', sent: 'Sent'};
  const highest = values.reduce((a, b) => Math.max(a, b), 0);
  const last = values.length > 0 ? values[values.length - 1] : 0;
  byId(name + '-text').textContent = captions[name] + ' per second: ' + rate(last) + unit +
      ' now, at most ' + rate(highest) + unit;
  let path = svg.firstElementChild;
  if (!path) {
    path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    svg.append(path);
  }
  // Ten minutes are 300 wide; the newest value is at the right.
  const step = interval / 2;
  const begin = 300 - (values.length - 1) * step;
  path.setAttribute('d', values.map((value, i) => (i === 0 ? 'M' : 'L') +
      (begin + i * step).toFixed(1) + ' ' + (76 - 72 * (highest > 0 ? value / highest : 0)).toFixed(1))
      .join(''));
}

function showHistory(history) {
  chart('tasks', history.tasks, '', history.interval_s);
  chart('received', history.received_bytes, 'B', history.interval_s);
  chart('sent', history.sent_bytes, 'B', history.interval_s);
  busy = history.busy.map((shares) => shares[shares.length - 1]);
}

let operators = [];
let shown = kRowsAtOnce;

// The share of the requests without a version that this version gets.
function share(operator, version) {
  const trial = operator.trial;
  const active = version.version === operator.active_version;
  if (trial && trial.version === version.version) {
    return trial.traffic_percent + ' %' +
        (trial.shadow_percent > 0 ? ', shadows ' + trial.shadow_percent + ' %' : '');
  }
  if (!active) return dash;
  return (trial ? 100 - trial.traffic_percent : 100) + ' %';
}

function showOperators() {
  const wanted = byId('filter').value.toLowerCase();
  const used = byId('used').checked;
  const found = operators.filter((operator) => operator.name.toLowerCase().includes(wanted) &&
      (!used || operator.versions.length > 1 || operator.versions.some((v) => Number(v.tasks) > 0)));
  const rows = [];
  for (const operator of found.slice(0, shown)) {
    const versions = operator.versions.length > 0 ? operator.versions : [{}];
    for (const version of versions.slice().reverse()) rows.push([operator, version]);
  }
  fill('operator-table', rows, ([operator, version]) => {
    const state = String(version.state || dash);
    return [
      text(operator.name), text(operator.summary),
      {text: version.version || dash, kind: 'number'},
      {text: state + (version.quarantine_reason ? ': ' + version.quarantine_reason : ''),
       kind: /quarantined/i.test(state) ? 'bad' : /active/i.test(state) ? 'good' : ''},
      {text: share(operator, version), kind: 'number'}, number(version.tasks),
      number(version.failed_tasks),
    ];
  }, 'No operator has this name.');
  const count = exact(Math.min(shown, found.length)) + ' of ' + exact(found.length) + ' operators';
  if (byId('operator-count').textContent !== count) byId('operator-count').textContent = count;
  byId('more').hidden = found.length <= shown;
}

function showEvents(list) {
  fill('event-table', list.events, (event) => [
    text(clock(event.time_ms)),
    {text: label(event.kind, /^(KIND_|EVENT_KIND_)/),
     kind: /QUARANTINED|REGRESSED|REJECTED/.test(event.kind) ? 'bad' : ''},
    text(event.operator || event.operator_name || event.name || dash),
    {text: event.version || dash, kind: 'number'}, text(event.actor || dash),
    text(event.message || (Number(event.generation) > 0 ? 'generation ' + event.generation : dash)),
  ], 'Nothing has changed since the start.');
}

async function draw(graph) {
  const answer = await fetch('/api/drawing?id=' + encodeURIComponent(graph.graph_id));
  const picture = byId('drawing-picture');
  byId('drawing').hidden = false;
  if (answer.ok) {
    if (picture.src) URL.revokeObjectURL(picture.src);
    picture.src = '/api/drawing?id=' + encodeURIComponent(graph.graph_id);
    picture.alt = 'The nodes of the graph ' + graph.name + ' and their order';
    byId('drawing-text').textContent = 'Graph ' + (graph.name || graph.graph_id);
  } else {
    picture.removeAttribute('src');
    byId('drawing-text').textContent = await answer.text();
  }
  picture.hidden = !answer.ok;
  byId('drawing-text').focus();
}

function showGraphs(list) {
  fill('graph-table', list.graphs, (graph) => [
    text(graph.graph_id.slice(0, 12)), text(graph.name || dash), text(label(graph.state, 'STATE_')),
    number(graph.nodes), number(graph.runs), number(graph.steps), number(graph.sessions),
    {button: 'Draw ' + (graph.name || graph.graph_id.slice(0, 12)), action: () => draw(graph)},
  ], 'No graph is loaded.');
}

// A row for each worker, a box for each chunk of a node; below it, the nodes by the time of their
// workers.
function showTrace(trace) {
  const workers = [...new Set(trace.events.map((event) => event[1]))].sort((a, b) => a - b);
  const end = trace.events.reduce((latest, event) => Math.max(latest, event[3]), 1);
  const height = 200 / Math.max(workers.length, 1);
  const line = new Map(workers.map((worker, index) => [worker, index]));
  byId('trace-picture').replaceChildren(...trace.events.map(([node, worker, from, to]) => {
    const box = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
    box.setAttribute('x', (1000 * from / end).toFixed(2));
    box.setAttribute('width', Math.max(1000 * (to - from) / end, 0.5).toFixed(2));
    box.setAttribute('y', (line.get(worker) * height).toFixed(2));
    box.setAttribute('height', (0.8 * height).toFixed(2));
    box.setAttribute('opacity', node % 2 === 0 ? '1' : '0.6');
    return box;
  }));
  const sums = new Map();
  for (const [node, , from, to] of trace.events) {
    const sum = sums.get(node) || {node, chunks: 0, ns: 0};
    sum.chunks += 1;
    sum.ns += to - from;
    sums.set(node, sum);
  }
  const nodes = [...sums.values()].sort((a, b) => b.ns - a.ns).slice(0, kRowsAtOnce);
  fill('node-table', nodes, (sum) => {
    const [name, called] = trace.nodes[sum.node];
    return [text(name || '#' + sum.node), text(called), number(sum.chunks),
            {text: microseconds(sum.ns), kind: 'number'}];
  }, 'No chunk was traced.');
  byId('trace-text').textContent = 'Run ' + trace.number + ' of ' + (trace.graph || 'a graph') + ': ' +
      workers.length + ' workers in ' + microseconds(end);
  byId('trace').hidden = false;
  byId('trace-text').focus();
}

const microseconds = (ns) => (ns / 1000).toFixed(1) + ' µs';

function showTraces(list) {
  fill('trace-table', list.traces, (trace) => {
    const end = trace.events.reduce((latest, event) => Math.max(latest, event[3]), 0);
    return [
      text(trace.number), text(clock(trace.time_ms)), text(trace.graph || dash),
      {text: microseconds(end), kind: 'number'}, number(trace.events.length),
      number(new Set(trace.events.map((event) => event[1])).size), number(trace.dropped),
      {button: 'Show run ' + trace.number, action: () => showTrace(trace)},
    ];
  }, 'No run was traced, or this page may not show it. Try: residentctl graph trace');
}

async function read(path) {
  const answer = await fetch(path, {signal: AbortSignal.timeout(kTimeoutMs)});
  if (!answer.ok) throw new Error(path + ': ' + answer.status);
  return answer.json();
}

let round = 0;
async function poll() {
  if (!document.hidden) {
    const connection = byId('connection');
    try {
      showHistory(await read('/api/history'));
      showStatus(await read('/api/status'));
      if (round++ % kSlowRounds === 0) {
        operators = (await read('/api/operators')).operators;
        showOperators();
        showEvents(await read('/api/events'));
        showGraphs(await read('/api/graphs'));
        showTraces(await read('/api/traces'));
      }
      if (connection.textContent !== 'Connected') connection.textContent = 'Connected';
      connection.className = '';
    } catch (error) {
      connection.textContent = 'The daemon does not answer (' + error.message + '). Trying again.';
      connection.className = 'bad';
    }
  }
  setTimeout(poll, kFastMs);
}

byId('filter').addEventListener('input', () => { shown = kRowsAtOnce; showOperators(); });
byId('used').addEventListener('change', () => { shown = kRowsAtOnce; showOperators(); });
byId('more').addEventListener('click', () => { shown += kRowsAtOnce; showOperators(); });
poll();
