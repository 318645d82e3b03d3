// A node: whether it is reached, what is wrong with it and what to do, what runs on it.
import { useRoute } from 'preact-iso';
import { condition, get, onNode, path, query, ROOT } from './api';
import { Badge, Command, Failure, Head, Labels, Row, Since, StateBadge, useData } from './ui';
import { Events } from './events';
import { alerts, Conditions, troubled } from './conditions';

export interface Finding { mark: 'ok' | 'look' | 'wrong'; message: string; advice?: string }

// findings is what edgebus doctor says, where the server knows it.
export async function findings(node: string): Promise<Finding[]> {
  return (await get(`/doctor/${path(node)}`)).findings ?? [];
}

export function FindingList({ list }: { list: Finding[] }) {
  return <ul class="findings">{list.map((f) => <li class={f.mark}><Badge tone={f.mark === 'wrong' ? 'bad' : f.mark === 'look' ? 'warn' : 'good'}>{f.mark === 'ok' ? 'well' : f.mark}</Badge><div>{f.message}{f.advice && <p class="advice">{f.advice}</p>}</div></li>)}</ul>;
}

const bytes = (n?: number) => n === undefined ? '–' : n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : `${Math.round(n / 2 ** 20)} MiB`;

export function Node() {
  const { params } = useRoute();
  const name = params.node ?? onNode();
  const { data, error, reload } = useData(async () => {
    const [node, links, doctor, upgrades, worth] = await Promise.all([
      onNode() ? get(`${ROOT}/nodes`).then((l) => l.items[0]) : get(`${ROOT}/nodes/${path(name)}`), get(onNode() ? '/links' : `/links/${path(name)}`).catch(() => undefined),
      findings(name).catch(() => undefined), onNode() ? undefined : get(`${ROOT}/upgrades`).catch(() => undefined), onNode() ? alerts() : undefined,
    ]);
    return { node, link: links?.links?.[0], streams: links?.streams, doctor, upgrades: (upgrades?.items ?? []) as any[], worth };
  }, [name], 5_000);
  if (!data) return error ? <Failure error={error} retry={reload} /> : <p class="loading">Loading…</p>;
  const { node, link, streams, doctor } = data;
  const s = node?.status ?? {};
  const ready = condition(node, 'Ready');
  const attempts = data.upgrades.flatMap((u) => (u.status?.nodes ?? []).filter((n: any) => n.nodeName === name).flatMap((n: any) => (n.history ?? []).map((h: any) => ({ ...h, upgrade: u.metadata.name }))));
  return <>
    <Head title={name} sub={<Labels labels={node?.metadata?.labels} to="/ui/nodes" />}><StateBadge state={s.state ?? link?.state} /></Head>
    {onNode() && link && link.state !== 'online' && <p class="banner warn" role="status"><b>{link.state === 'alone' ? 'This node works alone' : 'The hub is away'}</b> {link.lastError} {link.since && <>since <Since at={link.since} /></>}{link.behind && <> · {link.behind.keys ?? 0} changes wait for it</>}</p>}
    {!onNode() && s.state !== 'online' && <p class="banner bad" role="status"><b>{s.state ?? 'unknown'}</b> {ready?.message ?? link?.lastError ?? 'It has never connected.'} {link?.since && <span class="dim">since <Since at={link.since} /></span>}</p>}
    {data.worth && (data.worth.firing.length > 0 || troubled(data.worth).length > 0) && <section class="card needs"><h2>Worth a look</h2><ul><Conditions of={data.worth} /></ul></section>}
    {doctor && doctor.length > 0 && <section class="card"><h2>What <code>edgebus doctor</code> says</h2><FindingList list={[...doctor].sort((a, b) => ['wrong', 'look', 'ok'].indexOf(a.mark) - ['wrong', 'look', 'ok'].indexOf(b.mark))} /><Command>{`edgebus doctor ${name}`}</Command></section>}
    <div class="two">
      <section class="card"><h2>Link</h2><dl class="facts">
        <Row label="State">{link ? <StateBadge state={link.state} /> : '–'} {link?.since && <span class="dim">since <Since at={link.since} /></span>}</Row>
        <Row label="Last heard"><Since at={link?.lastSeen ?? s.lastSeen} /></Row>
        <Row label="In step">{link ? link.inStep ? 'yes' : `no${link.behind ? `, ${link.behind.keys ?? '?'} keys behind` : ''}` : '–'}</Row>
        <Row label="Address">{link?.peer ?? '–'}</Row>
        <Row label="Clock">{link?.clockAhead === undefined || link?.clockAhead === null ? '–' : Math.abs(link.clockAhead) < 0.5 ? 'right' : `${Math.abs(link.clockAhead).toFixed(1)} s ${link.clockAhead > 0 ? 'ahead' : 'behind'}`}</Row>
        <Row label="Certificate">{(link?.certificateExpires ?? s.certificateExpires) ? <>ends <Since at={link?.certificateExpires ?? s.certificateExpires} /></> : 'none'}</Row>
        {link?.lastError && <Row label="Last error"><span class="why">{link.lastError}</span></Row>}
        {streams && <Row label="Telemetry that waits">{streams.messages ?? 0} messages</Row>}
      </dl></section>
      <section class="card"><h2>Programs</h2><dl class="facts">
        <Row label="Core">{s.version ?? link?.version ?? '–'}</Row><Row label="Agent">{s.agentVersion ?? '–'}</Row>
        <Row label="Spec">{s.failed ? <Badge tone="bad">{`${s.failed.version ?? ''} failed`}</Badge> : s.specVersion ?? '–'}{s.failed?.message && <p class="why">{s.failed.message}</p>}{s.renderedVersion && s.renderedVersion !== s.specVersion && <span class="dim"> {s.renderedVersion} is to come</span>}</Row>
        <Row label="Fleet">{(node?.metadata?.owner ?? '').replace(/^Fleet\//, '') || '–'}</Row>
        <Row label="System">{[s.systemInfo?.operatingSystem ?? s.systemInfo?.os, s.systemInfo?.architecture, s.systemInfo?.kernel].filter(Boolean).join(' · ') || '–'}</Row>
        <Row label="Memory">{s.resources?.memory ? String(s.resources.memory.used ?? s.resources.memory) : bytes(s.systemInfo?.memoryBytes)}</Row>
        <Row label="Devices"><a href={onNode() ? '/ui/devices' : `/ui/devices?node=${path(name)}`}>{s.devices ?? 0}</a></Row>
        {!onNode() && <Row label="YAML"><a href={`/ui/objects/nodes/_/${path(name)}`}>spec and status</a></Row>}
      </dl></section>
    </div>
    {(s.applications ?? []).length > 0 && <section class="card"><h2>Applications</h2><table class="cards"><thead><tr><th scope="col">Name</th><th scope="col">Status</th><th scope="col">Ready</th></tr></thead><tbody>{s.applications.map((a: any) => <tr><th scope="row">{a.name}</th><td data-label="Status">{a.status}</td><td data-label="Ready">{a.ready ?? '–'}</td></tr>)}</tbody></table></section>}
    {attempts.length > 0 && <section class="card"><h2>Upgrades</h2><table class="cards"><thead><tr><th scope="col">Upgrade</th><th scope="col">From</th><th scope="col">To</th><th scope="col">Result</th></tr></thead><tbody>{attempts.reverse().map((h: any) => <tr><th scope="row">{h.upgrade}</th><td data-label="From">{h.fromVersion}</td><td data-label="To">{h.toVersion}</td><td data-label="Result"><Badge tone={h.operationStatus === 'upgrade_success' ? 'good' : /failed/.test(h.operationStatus) ? 'bad' : 'info'}>{String(h.operationStatus).replace(/_/g, ' ')}</Badge> <span class="why">{h.reason}</span></td></tr>)}</tbody></table></section>}
    {(s.conditions ?? []).length > 0 && <section class="card"><h2>Conditions</h2><table class="cards"><thead><tr><th scope="col">Type</th><th scope="col">Status</th><th scope="col">Reason</th><th scope="col">Since</th></tr></thead><tbody>{s.conditions.map((c: any) => <tr><th scope="row">{c.type}</th><td data-label="Status">{c.status}</td><td data-label="Reason">{c.reason} <span class="dim">{c.message}</span></td><td data-label="Since"><Since at={c.lastTransitionTime} /></td></tr>)}</tbody></table></section>}
    {!onNode() && <Events kind="Node" name={name} />}
    <span hidden>{query({})}</span>
  </>;
}
