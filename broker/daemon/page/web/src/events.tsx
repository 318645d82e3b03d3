// Events: what happened to objects.
import { get, mayWrite, query } from './api';
import { Badge, Empty, Failure, Head, Search, Since, useData, useQuery } from './ui';

const list = (selector: string, limit: number) => get('/api/v1/events' + query({ fieldSelector: selector, limit }));
const at = (e: any) => e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp;
const link = (o: any) => o?.kind === 'Device' ? `/ui/devices/${encodeURIComponent(o.namespace ?? 'default')}/${encodeURIComponent(o.name)}` : o?.kind === 'Node' ? `/ui/nodes/${encodeURIComponent(o.name)}` : undefined;

function Table({ items, about = true }: { items: any[]; about?: boolean }) {
  return <table class="cards"><thead><tr><th scope="col">When</th><th scope="col">Type</th>{about && <th scope="col">About</th>}<th scope="col">What</th></tr></thead><tbody>
    {items.map((e) => <tr key={e.metadata.uid ?? e.metadata.name}><td data-label="When" class="dim"><Since at={at(e)} /></td><td data-label="Type"><Badge tone={e.type === 'Warning' ? 'warn' : 'idle'}>{e.reason}</Badge></td>
      {about && <td data-label="About">{link(e.involvedObject) ? <a href={link(e.involvedObject)}>{e.involvedObject.name}</a> : e.involvedObject?.name} <small class="dim">{e.involvedObject?.kind}</small></td>}
      <td data-label="What">{e.message}{e.count > 1 && <small class="dim"> {e.count} times</small>}</td></tr>)}</tbody></table>;
}

// Events are those of one object.
export function Events({ kind, name }: { kind: string; name: string; namespace?: string }) {
  const { data, error } = useData(() => list(`involvedObject.kind=${kind},involvedObject.name=${name}`, 200), [kind, name], 15_000);
  const items = [...(data?.items ?? [])].sort((a, b) => Date.parse(at(b)) - Date.parse(at(a))).slice(0, 20);
  return <section class="card"><h2>Events</h2><Failure error={error} />{items.length ? <Table items={items} about={false} /> : <p class="dim">Nothing has happened lately.</p>}</section>;
}

// Audit is who did what, by the hub's audit log: it is for operators of all nodes.
function Audit({ q, set }: { q: Record<string, string>; set: ReturnType<typeof useQuery>[1] }) {
  const { data, error, reload } = useData(() => get<{ items: any[] }>('/audit' + query({ search: q.q, limit: 200 })), [q.q], 10_000);
  return <><div class="filters"><Search label="Search user, topic, path, answer" value={q.q ?? ''} onChange={(v) => set({ q: v }, true)} /></div>
    <Failure error={error} retry={reload} />
    <section class="card"><table class="cards"><thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">Did</th><th scope="col">To what</th><th scope="col">Answer</th></tr></thead><tbody>
      {(data?.items ?? []).map((e, i) => <tr key={i}><td data-label="When" class="dim"><Since at={e.time} /></td><td data-label="Who">{e.user || <span class="dim">nobody by name</span>} <small class="dim">{[e.roles, e.remote].filter(Boolean).join(' · ')}</small></td><td data-label="Did">{e.action} <small class="dim">{e.via}</small></td><td data-label="To what" class="values">{e.object}</td>
        <td data-label="Answer"><Badge tone={e.answer === 'ok' ? 'good' : 'warn'}>{e.answer}</Badge>{e.count > 1 && <small class="dim"> {e.count} times</small>}{e.reason && <p class="why">{e.reason}</p>}</td></tr>)}</tbody></table>
      {data && !data.items.length && <Empty>Nothing in the audit log{q.q ? ' matches' : ' yet'}.</Empty>}</section></>;
}

export function AllEvents() {
  const [q, set] = useQuery();
  return <><Head title={q.of === 'audit' ? 'Audit log' : 'Events'} sub={q.of === 'audit' ? 'Who signed in, wrote or was refused' : 'What happened to nodes, devices, fleets and upgrades'}>
    {mayWrite() && <div class="chips" role="group" aria-label="Of what">{[['', 'Events'], ['audit', 'Audit log']].map(([v, name]) => <button type="button" class="chip" aria-pressed={(q.of ?? '') === v} onClick={() => set({ of: v, q: '', type: '' })}>{name}</button>)}</div>}</Head>
    {q.of === 'audit' ? <Audit q={q} set={set} /> : <EventList q={q} set={set} />}</>;
}

function EventList({ q, set }: { q: Record<string, string>; set: ReturnType<typeof useQuery>[1] }) {
  const { data, error, reload } = useData(() => list('', 0), [], 10_000);
  const words = (q.q ?? '').toLowerCase().split(/\s+/).filter(Boolean);
  const items = [...(data?.items ?? [])].filter((e) => (!q.type || e.type === q.type) && words.every((w) => `${e.reason} ${e.message} ${e.involvedObject?.name} ${e.involvedObject?.kind}`.toLowerCase().includes(w)))
    .sort((a, b) => Date.parse(at(b)) - Date.parse(at(a)));
  return <><Failure error={error} retry={reload} />
    <div class="filters"><Search label="Search events" value={q.q ?? ''} onChange={(v) => set({ q: v }, true)} />
      <div class="chips" role="group" aria-label="Type">{['Warning', 'Normal'].map((t) => <button type="button" class="chip" aria-pressed={q.type === t} onClick={() => set({ type: q.type === t ? '' : t })}>{t}</button>)}</div></div>
    <section class="card">{items.length ? <Table items={items.slice(0, 300)} /> : data && <Empty>No events{words.length || q.type ? ' match' : ' yet'}.</Empty>}</section></>;
}
