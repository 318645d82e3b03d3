// Lists of devices and nodes: searched, filtered and paged by the server, with the filters in the URL.
import { useState } from 'preact/hooks';
import { call, condition, devicePath, get, mayWrite, onNode, path, query, ROOT } from './api';
import { Badge, Bar, Command, Empty, Failure, Head, Labels, Pager, Search, Since, StateBadge, Chips, useData, useQuery } from './ui';

const size = 50;

export interface Found { items: any[]; total: number; counts: Record<string, Record<string, number>> }

// search asks the hub's index. A node has few devices, and no index.
async function search(kind: 'devices' | 'nodes', q: Record<string, string>, fields: string[]): Promise<Found> {
  const offset = Number(q.offset) || 0;
  if (onNode()) {
    const all: any[] = (await get(`${ROOT}/${kind}`)).items;
    const words = (q.q ?? '').toLowerCase().split(/\s+/).filter(Boolean);
    const value: Record<string, (d: any) => string> = { 'status.state': (d) => d.status?.state ?? 'unknown', inSync: (d) => condition(d, 'InSync')?.status ?? 'Unknown' };
    const hits = all.filter((d) => words.every((w) => `${d.spec?.title ?? ''} ${d.metadata.name} ${Object.entries(d.metadata.labels ?? {}).map(([k, v]) => `${k}=${v}`).join(' ')}`.toLowerCase().includes(w))
      && (!q.state || value['status.state'](d) === q.state) && (!q.sync || value.inSync(d) === q.sync) && (!q.label || q.label.split(',').every((l) => { const [k, v] = l.split('='); return d.metadata.labels?.[k] === v; })));
    const counts: Found['counts'] = {};
    for (const f of fields) for (const d of all) { const v = value[f]?.(d); if (v !== undefined) (counts[f] ??= {})[v] = (counts[f][v] ?? 0) + 1; }
    return { items: hits.slice(offset, offset + size), total: hits.length, counts };
  }
  const selector = Object.entries({ 'status.state': q.state, 'status.inSync': q.sync, 'status.alarm': q.alarm, 'spec.nodeName': q.node, 'spec.deviceModelRef.name': q.model }).filter(([, v]) => v).map(([k, v]) => `${k}=${v}`).join(',');
  const common = { search: q.q, labelSelector: q.label, fieldSelector: selector };
  const [list, sum] = await Promise.all([
    get(`${ROOT}/${kind}${query({ ...common, order: q.order, offset, limit: size })}`),
    get(`${ROOT}/${kind}${query({ search: q.q, labelSelector: q.label, fieldSelector: q.node ? `spec.nodeName=${q.node}` : undefined, summary: fields.join(',') })}`),
  ]);
  return { items: list.items, total: offset + list.items.length + (list.metadata.remainingItemCount ?? 0), counts: sum.summary.counts };
}

const order = ['online', 'offline', 'unknown', 'True', 'False', 'Unknown'];
const sorted = (c?: Record<string, number>): [string, number][] => Object.entries(c ?? {}).sort(([a, n], [b, m]) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99) || m - n);
const words: Record<string, string> = { True: 'in sync', False: 'not in sync', Unknown: 'unknown' };

function Filters({ q, set, data, what }: { q: Record<string, string>; set: ReturnType<typeof useQuery>[1]; data?: Found; what: string }) {
  const filters = ['label', 'node', 'model', 'alarm'].filter((k) => q[k]);
  return <div class="filters"><Search label={`Search ${what}: title, name, node, label`} value={q.q ?? ''} onChange={(v) => set({ q: v, offset: '' }, true)} />
    <Chips label="State" values={sorted(data?.counts['status.state'])} chosen={q.state ?? ''} onChoose={(v) => set({ state: v, offset: '' })} tone={(v) => v === 'online' ? 'good' : v === 'offline' ? 'bad' : 'idle'} />
    {data?.counts.inSync && <div class="chips" role="group" aria-label="Sync"><span class="dim">Sync</span>{sorted(data.counts.inSync).map(([v, n]) => <button type="button" class={`chip ${v === 'False' ? 'warn' : v === 'True' ? 'good' : 'idle'}`} aria-pressed={q.sync === v} onClick={() => set({ sync: q.sync === v ? '' : v, offset: '' })}>{words[v] ?? v} <b>{n.toLocaleString()}</b></button>)}</div>}
    {filters.map((k) => <button type="button" class="chip" aria-pressed="true" onClick={() => set({ [k]: '', offset: '' })}>{k === 'label' ? q[k] : k === 'alarm' ? 'with an alarm' : `${k} ${q[k]}`} ✕</button>)}</div>;
}

function Sortable({ q, set, by, children }: { q: Record<string, string>; set: ReturnType<typeof useQuery>[1]; by: string; children: string }) {
  const current = q.order === by ? 'ascending' : q.order === '-' + by ? 'descending' : undefined;
  if (onNode()) return <th scope="col">{children}</th>;
  return <th scope="col" aria-sort={current ?? 'none'}><button type="button" class="plain" onClick={() => set({ order: current === 'ascending' ? '-' + by : by, offset: '' })}>{children}{current === 'ascending' ? ' ↑' : current ? ' ↓' : ''}</button></th>;
}

export const values = (d: any) => Object.entries(d.status?.twin ?? {}).filter(([, t]: any) => t.reported).slice(0, 3).map(([p, t]: any) => `${p} ${t.reported.value}`).join(' · ');

export function Devices() {
  const [q, set] = useQuery();
  const [adding, setAdding] = useState(false);
  const { data, error, loading, reload } = useData(() => search('devices', q, onNode() ? ['status.state', 'inSync'] : ['status.state', 'inSync']), [JSON.stringify(q)], 10_000);
  return <>
    <Head title="Devices" sub={data && `${data.total.toLocaleString()} ${q.q || q.state || q.sync || q.label || q.node || q.model ? 'match' : 'in all'}`}>
      {mayWrite() && !onNode() && <button type="button" class="primary" onClick={() => setAdding(!adding)} aria-expanded={adding}>Add a device</button>}</Head>
    {adding && <AddDevice onDone={() => { setAdding(false); reload(); }} />}
    <Filters q={q} set={set} data={data} what="devices" />
    <Failure error={error} retry={reload} />
    <section class="card">
      <table class="cards"><thead><tr><Sortable q={q} set={set} by="metadata.name">Device</Sortable><Sortable q={q} set={set} by="status.state">State</Sortable><Sortable q={q} set={set} by="status.inSync">Sync</Sortable>
        {!onNode() && <Sortable q={q} set={set} by="spec.nodeName">Node</Sortable>}<th scope="col">Model</th><th scope="col">Values</th><th scope="col">Last seen</th></tr></thead><tbody>
        {data?.items.map((d) => { const sync = condition(d, 'InSync'); return <tr key={d.metadata.namespace + '/' + d.metadata.name}>
          <th scope="row"><a href={`/ui/devices/${path(d.metadata.namespace, d.metadata.name)}`}>{d.spec.title || d.metadata.name}</a>{d.spec.title && <small class="dim"> {d.metadata.name}</small>}<Labels labels={d.metadata.labels} to="/ui/devices" /></th>
          <td data-label="State"><StateBadge state={d.status?.state} />{condition(d, 'Alarm')?.status === 'True' && <> <Badge tone="bad">alarm</Badge></>}</td>
          <td data-label="Sync">{sync?.status === 'True' ? <span class="dim">in sync</span> : sync?.status === 'False' ? <><Badge tone={sync.reason === 'Refused' ? 'bad' : 'warn'}>{String(sync.reason).toLowerCase()}</Badge> <small class="why">{sync.message}</small></> : <span class="dim">{sync?.reason?.toLowerCase() ?? '–'}</span>}</td>
          {!onNode() && <td data-label="Node">{d.spec.nodeName ? <a href={`/ui/nodes/${path(d.spec.nodeName)}`}>{d.spec.nodeName}</a> : <span class="dim">none</span>}</td>}
          <td data-label="Model"><a class="quiet" href={`?model=${path(d.spec.deviceModelRef?.name ?? '')}`}>{d.spec.deviceModelRef?.name}</a></td>
          <td data-label="Values" class="values">{values(d) || <span class="dim">–</span>}</td><td data-label="Last seen" class="dim"><Since at={d.status?.lastSeen} /></td></tr>; })}</tbody></table>
      {data && !data.items.length && <Empty>{q.q || q.state || q.sync || q.label ? <>No device matches. <button type="button" onClick={() => set({ q: '', state: '', sync: '', label: '', node: '', model: '', offset: '' })}>Show all</button></> : 'No devices yet: add one, or have a node look for them.'}</Empty>}
      {!data && loading && <p class="loading">Loading…</p>}
    </section>
    {data && <Pager offset={Number(q.offset) || 0} shown={data.items.length} total={data.total} onPage={(o) => set({ offset: o ? String(o) : '' })} />}
  </>;
}

function AddDevice({ onDone }: { onDone: () => void }) {
  const { data } = useData(async () => { const [models, nodes] = await Promise.all([get(`${ROOT}/devicemodels?limit=500`), get(`${ROOT}/nodes${query({ order: 'metadata.name', limit: 500 })}`)]); return { models: models.items as any[], nodes: nodes.items as any[] }; }, []);
  const [f, setF] = useState({ name: '', title: '', model: '', node: '', protocol: '', config: '' });
  const [error, setError] = useState<unknown>();
  const field = (k: keyof typeof f) => ({ value: f[k], onInput: (e: any) => setF({ ...f, [k]: e.currentTarget.value }) });
  const model = data?.models.find((m) => m.metadata.name === f.model);
  const protocols: string[] = (model?.spec?.propertyVisitors ?? []).map((v: any) => v.protocol).filter(Boolean);
  const config = Object.fromEntries(f.config.split('\n').map((l) => l.split('=')).filter((p) => p.length > 1).map(([k, ...v]) => [k.trim(), v.join('=').trim()]));
  const send = async (e: Event) => {
    e.preventDefault();
    try {
      await call('POST', `${ROOT}/namespaces/${path(model?.metadata.namespace ?? 'default')}/devices`, {
        apiVersion: 'edgebus.io/v1alpha1', kind: 'Device', metadata: { name: f.name },
        spec: { ...(f.title && { title: f.title }), deviceModelRef: { name: f.model }, ...(f.node && { nodeName: f.node }), protocol: { type: f.protocol || protocols[0] || 'none', ...(Object.keys(config).length && { config }) } },
      });
      onDone();
    } catch (err) { setError(err); }
  };
  return <form class="card form" onSubmit={send}><h2>Add a device</h2>
    <label>Name<input {...field('name')} required pattern="[a-z0-9]([a-z0-9.\-]*[a-z0-9])?" autocomplete="off" /></label>
    <label>Title for people<input {...field('title')} maxLength={128} /></label>
    <label>Model<select required {...field('model')}><option value="">choose…</option>{data?.models.map((m) => <option value={m.metadata.name}>{m.spec.title ?? m.metadata.name}</option>)}</select></label>
    <label>Node<select {...field('node')}><option value="">none yet</option>{data?.nodes.map((n) => <option value={n.metadata.name}>{n.metadata.name}</option>)}</select></label>
    <label>Protocol<input {...field('protocol')} list="protocols" placeholder={protocols[0] ?? 'none'} /></label><datalist id="protocols">{protocols.map((p) => <option value={p} />)}</datalist>
    <label class="wide">How it is reached, a setting a line, such as address=192.168.1.20:502<textarea rows={3} {...field('config')} /></label>
    <Failure error={error} /><div class="actions"><button class="primary">Add</button></div></form>;
}

export function Nodes() {
  const [q, set] = useQuery();
  const { data, error, loading, reload } = useData(() => search('nodes', q, ['status.state']), [JSON.stringify(q)], 10_000);
  return <>
    <Head title="Nodes" sub={data && `${data.total.toLocaleString()} ${q.q || q.state || q.label ? 'match' : 'in all'}`} />
    <Filters q={q} set={set} data={data} what="nodes" />
    <Failure error={error} retry={reload} />
    <section class="card"><table class="cards"><thead><tr><Sortable q={q} set={set} by="metadata.name">Node</Sortable><Sortable q={q} set={set} by="status.state">State</Sortable><th scope="col">Seen</th><Sortable q={q} set={set} by="status.version">Version</Sortable><Sortable q={q} set={set} by="metadata.owner">Fleet</Sortable><th scope="col">Devices</th><th scope="col">Applied</th></tr></thead><tbody>
      {data?.items.map((n) => <tr key={n.metadata.name}><th scope="row"><a href={`/ui/nodes/${path(n.metadata.name)}`}>{n.metadata.name}</a><Labels labels={n.metadata.labels} to="/ui/nodes" /></th>
        <td data-label="State"><StateBadge state={n.status?.state} />{n.status?.state !== 'online' && condition(n, 'Ready')?.message && <p class="why">{condition(n, 'Ready').message}</p>}</td>
        <td data-label="Seen" class="dim"><Since at={n.status?.lastSeen} /></td><td data-label="Version">{n.status?.version ?? '–'}</td><td data-label="Fleet">{(n.metadata.owner ?? '').replace(/^Fleet\//, '') || <span class="dim">–</span>}</td>
        <td data-label="Devices">{n.status?.devices ? <a href={`/ui/devices?node=${path(n.metadata.name)}`}>{n.status.devices}</a> : <span class="dim">0</span>}</td>
        <td data-label="Applied">{n.status?.failed ? <Badge tone="bad">failed</Badge> : n.status?.renderedVersion && n.status.renderedVersion !== n.status.specVersion ? <Badge tone="warn">to come</Badge> : <span class="dim">{n.status?.specVersion ? 'as wanted' : '–'}</span>}</td></tr>)}</tbody></table>
      {data && !data.items.length && <Empty>{q.q || q.state || q.label ? 'No node matches.' : <>No nodes yet. Invite one:<Command>edgebus invite</Command></>}</Empty>}
      {!data && loading && <p class="loading">Loading…</p>}</section>
    {data && <Pager offset={Number(q.offset) || 0} shown={data.items.length} total={data.total} onPage={(o) => set({ offset: o ? String(o) : '' })} />}
  </>;
}

export { Bar, devicePath };
