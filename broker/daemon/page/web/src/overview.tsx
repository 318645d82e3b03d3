// The overview: what needs one first, then counts that are links.
import { acknowledge, condition, get, mayWrite, path, query, ROOT } from './api';
import { Badge, Bar, Failure, Head, Since, StateBadge, useData } from './ui';
import { values } from './lists';
import { findings } from './node';
import { pending } from './approvals';
import { alerts, Conditions, troubled } from './conditions';

async function load() {
  const [devices, nodes, off, unsync, alarmed, fleets, upgrades, inbox, links, worth, first] = await Promise.all([
    get(`${ROOT}/devices?summary=status.state,inSync,status.alarm,label:site`), get(`${ROOT}/nodes?summary=status.state,status.version`),
    get(`${ROOT}/nodes${query({ fieldSelector: 'status.state!=online', order: 'metadata.name', limit: 5 })}`),
    get(`${ROOT}/devices${query({ fieldSelector: 'status.inSync=False', order: 'metadata.name', limit: 50 })}`),
    get(`${ROOT}/devices${query({ fieldSelector: 'status.alarm=True', order: 'metadata.name', limit: 10 })}`),
    get(`${ROOT}/fleets`).catch(() => ({ items: [] })), get(`${ROOT}/upgrades`).catch(() => ({ items: [] })), pending().catch(() => ({ nodes: [], devices: [] })), get('/links?limit=1').catch(() => ({})), alerts(),
    get(`${ROOT}/devices${query({ fieldSelector: 'status.state=online', order: 'metadata.name', limit: 6 })}`),
  ]);
  const doctors = Object.fromEntries(await Promise.all(off.items.map(async (n: any) => [n.metadata.name, (await findings(n.metadata.name).catch(() => [])).find((f) => f.mark === 'wrong')])));
  return { devices: devices.summary, nodes: nodes.summary, off, unsync, alarmed, fleets: fleets.items as any[], upgrades: upgrades.items as any[], inbox, links, doctors, worth, first: first.items as any[] };
}

const more = (list: any) => list.metadata.remainingItemCount ?? 0;

function Count({ n, label, href, tone }: { n: number; label: string; href: string; tone?: string }) {
  return <a class={`count ${n ? tone ?? '' : 'zero'}`} href={href}><b>{n.toLocaleString()}</b><span>{label}</span></a>;
}

export function Overview() {
  const { data: d, error, reload } = useData(load, [], 5_000);
  if (!d) return error ? <Failure error={error} retry={reload} /> : <p class="loading">Loading…</p>;
  const ds = d.devices.counts['status.state'] ?? {}, sync = d.devices.counts.inSync ?? {}, ns = d.nodes.counts['status.state'] ?? {};
  const rank = ['critical', 'high', 'medium', 'low'];
  const alarms: { d: any; a: any }[] = d.alarmed.items.flatMap((v: any) => (v.status?.alarms ?? []).map((a: any) => ({ d: v, a }))).filter(({ a }: any) => !a.acknowledged && !a.acknowledgedAt).sort((x: any, y: any) => rank.indexOf(x.a.severity) - rank.indexOf(y.a.severity));
  const bad = (o: any) => (o.status?.rollout?.failedNodes ?? o.status?.rollout?.failed ?? 0) as number;
  const halted = [...d.fleets, ...d.upgrades].filter((o) => bad(o) || o.status?.rollout?.reason === 'Halted');
  const running = d.upgrades.filter((u) => { const r = u.status?.rollout; return r && (r.succeeded ?? 0) + (r.failed ?? 0) < r.nodes; });
  const rolling = d.fleets.filter((f) => { const r = f.status?.rollout; return r && r.nodes && !r.finishedAt && (r.updated ?? 0) < r.nodes; });
  const inbox = d.inbox.nodes.length + d.inbox.devices.length;
  const storage = Object.entries({ ...d.links.failingStores, ...d.links.damagedStores, ...(d.links.lowSpace && { disk: d.links.lowSpace }), ...(d.links.missingData && { data: d.links.missingData }) }) as [string, string][];
  const calm = !d.off.items.length && !d.unsync.items.length && !inbox && !halted.length && !storage.length && !alarms.length && !d.worth.firing.length && !troubled(d.worth).length;
  // What waits for a node that is away is said once, at the node.
  const away = new Set(d.off.items.map((n: any) => n.metadata.name)), unsync = d.unsync.items.filter((v: any) => !away.has(v.spec?.nodeName) || condition(v, 'InSync')?.reason !== 'Waiting').slice(0, 5);
  const others = d.unsync.items.length + more(d.unsync) - unsync.length;
  const sites = Object.entries((d.devices.counts['label:site'] ?? {}) as Record<string, number>).filter(([s]) => s).sort((a, b) => b[1] - a[1]);
  return <>
    <Head title="Overview" />
    <section class="card needs"><h2>Needs you</h2>
      {calm && <p class="calm"><Badge tone="good">all is well</Badge> Every node is online, and every device is as it is wanted.</p>}
      <ul>
        {alarms.map(({ d: v, a }) => <li class={a.severity === 'low' ? 'warn' : 'bad'} key={v.metadata.uid + a.propertyName + a.name}><Badge tone={a.severity === 'low' || a.severity === 'medium' ? 'warn' : 'bad'}>{a.severity} alarm</Badge><div><a href={`/ui/devices/${path(v.metadata.namespace, v.metadata.name)}`}><b>{v.spec?.title || v.metadata.name}</b></a> <span class="dim">{v.spec?.nodeName} · <Since at={a.since} /></span><p class="why">{a.message}</p>{mayWrite(v.spec?.nodeName) && <button type="button" onClick={() => void acknowledge(v, a).then(reload)}>Acknowledge</button>}</div></li>)}
        {storage.map(([what, why]) => <li class="bad"><Badge tone="bad">hub</Badge><div><b>{what}</b> <p class="why">{why}</p></div></li>)}
        <Conditions of={d.worth} />
        {d.off.items.map((n: any) => { const f = d.doctors[n.metadata.name]; return <li class="bad" key={n.metadata.name}><Badge tone="bad">node {n.status?.state ?? 'unknown'}</Badge><div><a href={`/ui/nodes/${path(n.metadata.name)}`}><b>{n.metadata.name}</b></a> <span class="dim"><Since at={n.status?.lastSeen} prefix="for " /></span><p class="why">{f?.message ?? condition(n, 'Ready')?.message ?? 'It has never connected.'}</p><p class="advice">{f?.advice ?? <>Is it on, and does its network reach the hub? On the node itself <code>edgebus doctor</code> says more.</>}</p></div></li>; })}
        {more(d.off) > 0 && <li><a href="/ui/nodes?state=offline">{more(d.off)} more nodes are not online</a></li>}
        {halted.map((o) => <li class="bad" key={o.metadata.uid}><Badge tone="bad">{o.kind === 'Upgrade' || o.spec?.nodeNames ? 'upgrade' : 'rollout'}</Badge><div><a href="/ui/rollouts"><b>{o.metadata.name}</b></a>{bad(o) > 0 && <span class="dim"> {bad(o)} of {o.status.rollout.nodes} nodes failed</span>}<p class="why">{o.status.rollout.message ?? o.status.rollout.reason}</p><p class="advice">Pause it, or undo it: the nodes get back what they had.</p></div></li>)}
        {unsync.map((v: any) => { const c = condition(v, 'InSync'); return <li class="warn" key={v.metadata.uid}><Badge tone={c?.reason === 'Refused' ? 'bad' : 'warn'}>{String(c?.reason ?? 'not in sync').toLowerCase()}</Badge><div><a href={`/ui/devices/${path(v.metadata.namespace, v.metadata.name)}`}><b>{v.spec?.title || v.metadata.name}</b></a> <span class="dim">{v.spec?.nodeName} · <Since at={c?.lastTransitionTime} /></span><p class="why">{c?.reason === 'Waiting' ? `waits to be as it is wanted: ${c.message}` : c?.message}</p></div></li>; })}
        {others > 0 && <li class="warn"><Badge tone="warn">waiting</Badge><div><a href="/ui/devices?sync=False"><b>{others.toLocaleString()} {unsync.length > 0 ? 'more ' : ''}{others === 1 ? 'device is' : 'devices are'} not as wanted</b></a>{away.size > 0 && <p class="advice">What is wanted of devices on a node that is away is sent when it is back.</p>}</div></li>}
        {inbox > 0 && <li class="info"><Badge tone="info">to approve</Badge><div><a href="/ui/approvals"><b>{d.inbox.nodes.length > 0 && `${d.inbox.nodes.length} ${d.inbox.nodes.length === 1 ? 'node asks' : 'nodes ask'} to join`}{d.inbox.nodes.length > 0 && d.inbox.devices.length > 0 && ', '}{d.inbox.devices.length > 0 && `${d.inbox.devices.length} ${d.inbox.devices.length === 1 ? 'device was' : 'devices were'} found`}</b></a></div></li>}
      </ul></section>
    {[...running, ...rolling].map((o) => { const r = o.status.rollout; const done = r.succeeded ?? r.updated ?? 0, lost = r.failed ?? r.failedNodes ?? 0, now = r.upgrading ?? r.updating ?? 0; return <section class="card" key={o.metadata.uid}><h2><a href="/ui/rollouts">{o.metadata.name}</a> <span class="dim">{done} of {r.nodes} nodes{r.batches ? `, batch ${r.batch} of ${r.batches}` : ''}</span></h2><Bar label={o.metadata.name} total={r.nodes} parts={[['done', done, 'good'], ['under way', now, 'info'], ['failed', lost, 'bad'], ['to come', Math.max(0, r.nodes - done - lost - now), 'idle']]} />{r.message && <p class="dim">{r.message}</p>}</section>; })}
    <div class="two">
      <section class="card"><h2>Devices</h2><div class="counts"><Count n={d.devices.total} label="in all" href="/ui/devices" /><Count n={ds.online ?? 0} label="online" href="/ui/devices?state=online" tone="good" /><Count n={ds.offline ?? 0} label="offline" href="/ui/devices?state=offline" tone="bad" /><Count n={ds.unknown ?? 0} label="unknown" href="/ui/devices?state=unknown" /><Count n={sync.False ?? 0} label="not in sync" href="/ui/devices?sync=False" tone="warn" /><Count n={d.devices.counts['status.alarm']?.True ?? 0} label="with an alarm" href="/ui/devices?alarm=True" tone="bad" /></div>
        <Bar label="Devices" total={d.devices.total} parts={[['online', ds.online ?? 0, 'good'], ['offline', ds.offline ?? 0, 'bad'], ['unknown', ds.unknown ?? 0, 'idle']]} /></section>
      <section class="card"><h2>Nodes</h2><div class="counts"><Count n={d.nodes.total} label="in all" href="/ui/nodes" /><Count n={ns.online ?? 0} label="online" href="/ui/nodes?state=online" tone="good" /><Count n={ns.offline ?? 0} label="offline" href="/ui/nodes?state=offline" tone="bad" /><Count n={ns.unknown ?? 0} label="never seen" href="/ui/nodes?state=unknown" /></div>
        <Bar label="Nodes" total={d.nodes.total} parts={[['online', ns.online ?? 0, 'good'], ['offline', ns.offline ?? 0, 'bad'], ['unknown', ns.unknown ?? 0, 'idle']]} /></section>
    </div>
    {d.first.length > 0 && <section class="card"><h2>Now</h2><ul class="now">{d.first.map((v) => <li key={v.metadata.uid}><a href={`/ui/devices/${path(v.metadata.namespace, v.metadata.name)}`}>{v.spec?.title || v.metadata.name}</a><span class="values">{values(v) || '–'}</span><StateBadge state={v.status?.state} /></li>)}</ul></section>}
    {sites.length > 0 && <section class="card"><h2>Sites</h2><div class="chips">{sites.slice(0, 40).map(([s, n]) => <a class="chip" href={`/ui/devices?label=${encodeURIComponent(`site=${s}`)}`}>{s} <b>{n}</b></a>)}</div></section>}
    {!d.devices.total && mayWrite() && <p class="dim">There are no devices yet. <a href="/ui/devices">Add the first one</a>, or run <code>edgebus demo</code> to see some.</p>}
  </>;
}
