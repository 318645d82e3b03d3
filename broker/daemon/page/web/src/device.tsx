// A device: a row a property, with what is reported, what is wished, and why they differ.
import { useEffect, useRef, useState } from 'preact/hooks';
import { useRoute } from 'preact-iso';
import { acknowledge, condition, devicePath, get, mayWrite, onNode, path, query, ROOT } from './api';
import { link, publish, request, subscribe, type Message } from './live';
import { Badge, Command, Empty, Failure, Head, Labels, now, Row, Since, StateBadge, useData } from './ui';
import { Plot, sampleOf, Spark, type History, type Sample } from './plot';
import { Events } from './events';

interface Value { value: string; ts?: string; origin?: string; ver?: number; for?: number }
interface Twin { desired?: Value; reported?: Value; override?: Value; refused?: any; conflict?: any; problem?: any; inSync?: boolean; local?: boolean }
type Twins = Record<string, Twin>;

const branches = ['desired', 'reported', 'override', 'refused', 'conflict', 'problem'] as const;

// useTwin is the twin of a device: as the API has it at first, then as the topics say.
function useTwin(device: any): { twin: Twins; state: string; desired: Record<string, Value> } {
  const node = device?.spec?.nodeName as string | undefined, name = device?.metadata?.name as string | undefined;
  const [, redraw] = useState(0);
  const ref = useRef<{ twin: Twins; state: string; for?: string }>({ twin: {}, state: '' });
  const key = `${node}/${name}`;
  if (device && ref.current.for !== key) ref.current = { twin: structuredClone(device.status?.twin ?? {}), state: device.status?.state ?? 'unknown', for: key };
  useEffect(() => {
    if (!node || !name) return;
    const base = `v1/nodes/${node}/devices/${name}/`;
    let drawn = 0;
    const take = (m: Message) => {
      const [branch, property] = m.topic.slice(base.length).split('/');
      const now = ref.current;
      if (branch === 'state' && !property) now.state = m.text || 'unknown';
      else if (property && (branches as readonly string[]).includes(branch)) {
        const t: any = { ...(now.twin[property] ?? {}) };
        if (!m.payload.length) delete t[branch];
        else if (branch === 'desired' || branch === 'reported' || branch === 'override') {
          t[branch] = { value: m.text, ts: m.props.ts, origin: m.props.origin, ver: Number(m.props.ver) || undefined, for: Number(m.props.for) || undefined };
        } else try { t[branch] = JSON.parse(m.text); } catch { t[branch] = { message: m.text }; }
        now.twin = { ...now.twin, [property]: t };
      } else return;
      if (!drawn) drawn = requestAnimationFrame(() => { drawn = 0; redraw((n) => n + 1); });
    };
    const ends = [subscribe(base + 'state', take), ...branches.map((b) => subscribe(base + b + '/+', take))];
    return () => { ends.forEach((end) => end()); cancelAnimationFrame(drawn); };
  }, [key]);
  return { ...ref.current, desired: {} };
}

// same compares a wished and a reported value as the model's type does.
function same(p: any, a?: string, b?: string): boolean {
  if (a === undefined || b === undefined) return false;
  if (a === b) return true;
  if (['int', 'integer', 'float', 'double', 'number'].includes(p.type)) return Number(a) === Number(b);
  return p.type === 'boolean' && a.toLowerCase() === b.toLowerCase();
}

interface State { tone: 'good' | 'bad' | 'warn' | 'idle' | 'info'; text: string; detail?: string; since?: string }

// stateOf is the state of a property, and why it is not in sync.
function stateOf(p: any, t: Twin): State {
  const want = t.override ?? t.desired;
  if (t.conflict) return { tone: 'bad', text: 'conflict', detail: `the hub wants ${t.conflict.desired}, the node ${t.conflict.override}; ${t.conflict.winner === 'override' ? "the node's" : "the hub's"} is in force` };
  if (t.problem && !t.reported) return { tone: 'warn', text: 'unread', detail: t.problem.message ?? t.problem.code };
  if (t.refused && want && !same(p, want.value, t.reported?.value) && (!t.refused.for || !want.ver || t.refused.for >= want.ver || t.refused.ver === want.ver)) {
    return { tone: 'bad', text: 'refused', detail: t.refused.message ?? t.refused.code };
  }
  if (want && t.reported && same(p, want.value, t.reported.value)) return { tone: 'good', text: 'in sync' };
  if (want && !t.local) return { tone: 'warn', text: 'waiting', since: want.ts };
  if (t.problem) return { tone: 'warn', text: 'unread', detail: t.problem.message ?? t.problem.code };
  if (t.local) return { tone: 'idle', text: 'on the node only' };
  return t.reported ? { tone: 'idle', text: 'read' } : { tone: 'idle', text: 'never read' };
}

const shown = (p: any, v?: string) => v === undefined ? '–' : p.unit ? `${v} ${p.unit}` : v;
const writable = (p: any) => /write/i.test(p.accessMode ?? '');
const numeric = (p: any) => ['int', 'integer', 'float', 'double', 'number'].includes(p.type);
const title = (p: any) => p.title || p.name;

// Control sets a property, by its schema.
function Control({ p, t, set, off }: { p: any; t: Twin; set: (v: string) => Promise<void>; off: boolean }) {
  const want = (t.override ?? t.desired)?.value, is = t.reported?.value;
  const [draft, setDraft] = useState<string>();
  const [sent, setSent] = useState<string>();
  const [error, setError] = useState('');
  useEffect(() => { if (sent !== undefined && (same(p, sent, is) || t.refused)) setSent(undefined); }, [is, t.refused]);
  const send = (v: string) => {
    setError('');
    setSent(v);
    setDraft(undefined);
    set(v).catch((e) => { setError(e.message); setSent(undefined); });
  };
  const value = draft ?? sent ?? want ?? is ?? '';
  const waiting = sent !== undefined || (want !== undefined && !same(p, want, is) && !t.refused);
  const label = `Set ${title(p)}`;
  const options: string[] | undefined = p.enum?.map(String) ?? (p.type === 'boolean' ? ['false', 'true'] : undefined);
  let control;
  if (options?.length === 2 && (p.type === 'boolean' || options.some((o) => /^(on|off|true|false|open|closed?|yes|no|1|0)$/i.test(o)))) {
    const onValue = options.find((o) => /^(on|true|open|yes|1)$/i.test(o)) ?? options[1];
    const offValue = options.find((o) => o !== onValue)!;
    const on = value === onValue;
    control = <button type="button" role="switch" aria-checked={on} aria-label={label} disabled={off} class={`switch ${waiting ? 'waiting' : ''}`} onClick={() => send(on ? offValue : onValue)}><i /></button>;
  } else if (options) {
    control = <select aria-label={label} disabled={off} value={value} onChange={(e) => send(e.currentTarget.value)}>{!options.includes(value) && <option value={value}>{value || '–'}</option>}{options.map((o) => <option value={o}>{o}</option>)}</select>;
  } else {
    const range = p.minimum !== undefined && p.maximum !== undefined;
    const step = p.step ?? (p.type === 'int' || p.type === 'integer' ? 1 : 'any');
    control = <form class="field" onSubmit={(e) => { e.preventDefault(); if (draft !== undefined) send(draft); }}>
      {range && numeric(p) && <input type="range" aria-label={`${label} by slider`} tabIndex={-1} disabled={off} min={p.minimum} max={p.maximum} step={step === 'any' ? (p.maximum - p.minimum) / 100 : step} value={value || p.minimum}
        onInput={(e) => setDraft(e.currentTarget.value)} onChange={(e) => send(e.currentTarget.value)} />}
      <input class={waiting ? 'waiting' : ''} aria-label={label} title="Enter sends, Esc restores" type={numeric(p) ? 'number' : 'text'} step={step} disabled={off} value={value}
        onInput={(e) => setDraft(e.currentTarget.value)} onKeyDown={(e) => { if (e.key === 'Escape') { setDraft(undefined); e.currentTarget.blur(); } }} onBlur={() => setDraft(undefined)} />
      {(p.unit || range) && <span class="dim">{p.unit} {range && `${p.minimum}…${p.maximum}`}</span>}
    </form>;
  }
  return <div class="control">{control}{error && <p class="why" role="alert">{error}</p>}</div>;
}

function Property({ device, p, t, off, set }: { device: any; p: any; t: Twin; off: boolean; set: (p: string, v: string) => Promise<void> }) {
  const [open, setOpen] = useState(false);
  const s = stateOf(p, t);
  const want = t.override ?? t.desired;
  const history = useHistory(device, p, 60);
  const seen = useRef<Sample[]>([]);
  const last = seen.current.at(-1), current = t.reported && sampleOf(t.reported.value, t.reported.ts);
  if (current && (!last || current.t > last.t)) seen.current = [...seen.current, current].slice(-500);
  return <>
    <tr class={open ? 'open' : ''}>
      <th scope="row"><button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)} title={p.description}>{title(p)}</button>{p.title && <small class="dim">{p.name}</small>}</th>
      <td data-label="Reported" class="value"><b>{shown(p, t.reported?.value)}</b></td>
      <td data-label="Since" class="dim"><Since at={t.reported?.ts} /></td>
      <td data-label="Desired" class={want ? '' : 'none'}>{want ? <span>{shown(p, want.value)} <small class="dim">{t.override && 'on the node, '}{want.origin && `by ${want.origin.startsWith('page-') ? 'a page' : want.origin}`}</small></span> : <span class="dim">–</span>}</td>
      <td data-label="State"><Badge tone={s.tone}>{s.text}{s.since && <> since <Since at={s.since} /></>}</Badge>{s.detail && <p class="why">{s.detail}</p>}</td>
      <td data-label="24 h" class={`spark ${history?.times?.length || seen.current.length > 1 ? '' : 'none'}`}><button type="button" class="plain" aria-label={`Plot of ${title(p)}`} onClick={() => setOpen(!open)}><Spark history={history} seen={seen.current} /></button></td>
      <td data-label="Set" class={writable(p) ? '' : 'none'}>{writable(p) ? <Control p={p} t={t} off={off} set={(v) => set(p.name, v)} /> : <span class="dim">read only</span>}</td>
    </tr>
    {open && <tr class="detail"><td colSpan={7}><Plot load={(from, to, points) => loadHistory(device, p, from, to, points)} unit={p.unit} name={title(p)} live={t.reported} seen={seen.current} />
      <Command>{onNode() ? `mosquitto_pub -V 5 -q 1 -p 2883 -t v1/nodes/${device.spec.nodeName}/devices/${device.metadata.name}/desired/${p.name} -m ${quote(want?.value ?? '')}` : `edgebus twin set ${device.metadata.name} ${p.name}=${quote(want?.value ?? t.reported?.value ?? 'VALUE')}`}</Command></td></tr>}
  </>;
}

const quote = (v: string) => /^[\w.+:-]+$/.test(v) ? v : `'${v.replace(/'/g, `'\\''`)}'`;

async function loadHistory(device: any, p: any, from: Date, to: Date, points: number): Promise<History> {
  return get<History>(devicePath(device.metadata.namespace, device.metadata.name) + '/history' + query({ property: p.name, from: from.toISOString(), to: to.toISOString(), points }));
}

// useHistory is the last day, coarse. Without a history there is none.
function useHistory(device: any, p: any, points: number): History | undefined {
  const [h, setH] = useState<History>();
  useEffect(() => {
    let ended = false;
    loadHistory(device, p, new Date(Date.now() - 86400e3), new Date(), points).then((x) => { if (!ended) setH(x); }, () => undefined);
    return () => { ended = true; };
  }, [device.metadata.uid, p.name]);
  return h;
}

function Commands({ device, model, off }: { device: any; model: any; off: boolean }) {
  const list: any[] = [...(model?.spec?.commands ?? []), ...(device.spec?.commands ?? [])].map((c: any) => (typeof c === 'string' ? { name: c } : c));
  const [name, setName] = useState('');
  const [payload, setPayload] = useState('');
  const [answer, setAnswer] = useState<{ text: string; bad: boolean; at: number }>();
  const [busy, setBusy] = useState(false);
  const send = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    try {
      const m = await request(`v1/nodes/${device.spec.nodeName}/devices/${device.metadata.name}/commands/${name}`, payload);
      const bad = m.props.code !== undefined && m.props.code !== 'OK';
      setAnswer({ text: bad ? `${m.props.code}: ${m.props.error ?? m.text}` : m.text || 'done', bad, at: Date.now() });
    } catch (err) { setAnswer({ text: (err as Error).message, bad: true, at: Date.now() }); } finally { setBusy(false); }
  };
  return <section class="card"><h2>Commands</h2>
    <form class="inline" onSubmit={send}>
      <label>Name<input list="commands" value={name} onInput={(e) => setName(e.currentTarget.value)} required pattern="[A-Za-z0-9]([A-Za-z0-9_.\-]*[A-Za-z0-9])?" /></label>
      <datalist id="commands">{list.map((c) => <option value={c.name}>{c.title}</option>)}</datalist>
      <label>Payload<input value={payload} onInput={(e) => setPayload(e.currentTarget.value)} /></label>
      <button class="primary" disabled={off || busy || !name}>{busy ? 'Waiting…' : 'Send'}</button>
    </form>
    {answer && <p class={answer.bad ? 'why' : ''} role="status"><b>{answer.text}</b> <span class="dim"><Since at={answer.at} /></span></p>}
  </section>;
}

export function Device() {
  const { params } = useRoute();
  const { namespace = 'default', device: name } = params;
  const { data, error, reload } = useData(async () => {
    const device = await get(devicePath(namespace, name));
    const model = await get(`${ROOT}/namespaces/${path(namespace, 'devicemodels', device.spec?.deviceModelRef?.name ?? '')}`).catch(() => undefined);
    return { device, model };
  }, [namespace, name], 30_000);
  const device = data?.device, model = data?.model;
  const { twin, state } = useTwin(device);
  if (!device) return error ? <Failure error={error} retry={reload} /> : <p class="loading">Loading…</p>;
  const node = device.spec.nodeName as string | undefined;
  const off = link.value.state !== 'live' || !mayWrite(node);
  const set = (p: string, v: string) => publish(`v1/nodes/${node}/devices/${name}/desired/${p}`, v);
  const properties: any[] = model?.spec?.properties ?? Object.keys(twin).map((n) => ({ name: n }));
  const online = condition(device, 'Online'), sync = condition(device, 'InSync');
  return <>
    <Head title={device.spec.title || name} sub={<>{device.spec.title && <>{name} · </>}{node ? <a href={`/ui/nodes/${path(node)}`}>{node}</a> : 'on no node'} · {device.spec.deviceModelRef?.name} · {device.spec.protocol?.type}</>}>
      <StateBadge state={state} />
    </Head>
    {state !== 'online' && online?.message && <p class="banner warn" role="status"><b>{state}</b> {online.message}</p>}
    {(device.status?.alarms ?? []).map((a: any) => <p class={`banner ${a.acknowledged || a.acknowledgedAt ? 'warn' : 'bad'}`} role="alert" key={a.propertyName + a.name}><b>{a.severity} alarm</b> {a.message} <span class="dim">since <Since at={a.since} /></span> {a.acknowledged || a.acknowledgedAt ? <span class="dim">acknowledged</span> : mayWrite(node) && !onNode() && <button type="button" onClick={() => void acknowledge(device, a).then(reload)}>Acknowledge</button>}</p>)}
    {sync?.status === 'False' && sync.message && <p class="banner warn" role="status"><b>not in sync</b> {sync.message}</p>}
    <section class={link.value.state === 'lost' ? 'card stale' : 'card'}>
      <table class="cards properties"><thead><tr><th scope="col">Property</th><th scope="col">Reported</th><th scope="col">Since</th><th scope="col">Desired</th><th scope="col">State</th><th scope="col">24 h</th><th scope="col">Set</th></tr></thead>
        <tbody>{properties.map((p) => <Property key={p.name} device={device} p={p} t={twin[p.name] ?? {}} off={off || !node} set={set} />)}</tbody></table>
      {!properties.length && <Empty>The model {device.spec.deviceModelRef?.name} isn't there, so nothing is known of its properties.</Empty>}
    </section>
    <div class="two">
      {mayWrite(node) && node && <Commands device={device} model={model} off={off} />}
      <section class="card"><h2>About</h2><dl class="facts">
        <Row label="Namespace">{device.metadata.namespace}</Row>
        <Row label="Last seen"><Since at={device.status?.lastSeen} /></Row>
        <Row label="Created"><Since at={device.metadata.creationTimestamp} /></Row>
        {(device.metadata.ownerReferences ?? []).filter((o: any) => o.kind === 'Instance').map((o: any) => <Row label="Was found as">{onNode() ? o.name : <a href={`/ui/objects/instances/${path(namespace, o.name)}`}>{o.name}</a>}</Row>)}
        {Object.entries(device.spec.protocol?.config ?? {}).map(([k, v]) => <Row label={k}>{String(v)}</Row>)}
        <Row label="Labels"><Labels labels={device.metadata.labels} to="/ui/devices" /></Row>
        {!onNode() && <Row label="YAML"><a href={`/ui/objects/devices/${path(namespace, name)}`}>spec and status</a></Row>}
      </dl></section>
    </div>
    {(device.status?.conditions ?? []).length > 0 && <section class="card"><h2>Conditions</h2><table class="cards"><thead><tr><th scope="col">Type</th><th scope="col">Status</th><th scope="col">Reason</th><th scope="col">Since</th></tr></thead><tbody>
      {device.status.conditions.map((c: any) => <tr><th scope="row">{c.type}</th><td data-label="Status">{c.status}</td><td data-label="Reason">{c.reason} {c.message && <span class="dim">{c.message}</span>}</td><td data-label="Since"><Since at={c.lastTransitionTime} /></td></tr>)}</tbody></table></section>}
    {!onNode() && <Events kind="Device" name={name} namespace={namespace} />}
    <span hidden>{now.value}</span>
  </>;
}
