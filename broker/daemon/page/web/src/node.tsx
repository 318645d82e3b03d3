// A node: whether it is reached, what is wrong with it and what to do, what runs on it.
import { useRoute } from 'preact-iso';
import { condition, get, onNode, path, query, ROOT } from './api';
import { Badge, Command, Failure, Head, Labels, Row, Since, StateBadge, useData } from './ui';
import { Events } from './events';

// advice is what can be wrong with a node by what the hub knows of it, and what to do. edgebus doctor, which asks the node as well, knows more.
function advice(name: string, s: any, link: any): [string, string][] {
  const list: [string, string][] = [];
  if (link?.rejected) list.push([`The hub refused ${link.rejected.count ?? ''} connections in this node's name: ${link.rejected.reason}`, 'compare the name and the certificate on the node']);
  if (link?.otherHub) list.push([`Its data is from another hub, ${link.otherHub}`, 'list that hub in replaces of hub.yaml, if this one replaces it']);
  if (link?.overQuota) list.push([`It owns more than it may: ${link.overQuota}`, 'raise limits.node of the hub, or have it report less']);
  if (link?.renewalError) list.push([`Its certificate can't be renewed: ${link.renewalError}`, 'see the log of its core']);
  if (s.failed) list.push([`Its agent could not apply ${s.failed.version ?? 'the spec'}: ${s.failed.message ?? ''}`, 'mend the spec or the fleet; the node goes on with what it has']);
  if (s.state !== 'online' && s.state !== undefined) list.push(['It has no connection to the hub.', `on the node: is it switched on, does its core run (systemctl status edgecore), does the network reach the hub? Its own page, at port 10550, says why it can't connect`]);
  if (!s.state) list.push(['It has never connected.', `have it join: edgebus invite ${name}`]);
  return list;
}

const bytes = (n?: number) => n === undefined ? '–' : n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : `${Math.round(n / 2 ** 20)} MiB`;

export function Node() {
  const { params } = useRoute();
  const name = params.node ?? onNode();
  const { data, error, reload } = useData(async () => {
    const [node, links, upgrades] = await Promise.all([
      onNode() ? get(`${ROOT}/nodes`).then((l) => l.items[0]) : get(`${ROOT}/nodes/${path(name)}`), get(onNode() ? '/links' : `/links/${path(name)}`).catch(() => undefined),
      onNode() ? undefined : get(`${ROOT}/upgrades`).catch(() => undefined),
    ]);
    return { node, link: links?.links?.[0], streams: links?.streams, upgrades: (upgrades?.items ?? []) as any[] };
  }, [name], 5_000);
  if (!data) return error ? <Failure error={error} retry={reload} /> : <p class="loading">Loading…</p>;
  const { node, link, streams } = data;
  const s = node?.status ?? {};
  const ready = condition(node, 'Ready');
  const attempts = data.upgrades.flatMap((u) => (u.status?.nodes ?? []).filter((n: any) => n.nodeName === name).flatMap((n: any) => (n.history ?? []).map((h: any) => ({ ...h, upgrade: u.metadata.name }))));
  return <>
    <Head title={name} sub={<Labels labels={node?.metadata?.labels} to="/ui/nodes" />}><StateBadge state={s.state ?? link?.state} /></Head>
    {onNode() && link && link.state !== 'online' && <p class="banner warn" role="status"><b>{link.state === 'alone' ? 'This node works alone' : 'The hub is away'}</b> {link.lastError} {link.since && <>since <Since at={link.since} /></>}{link.behind && <> · {link.behind.keys ?? 0} changes wait for it</>}</p>}
    {!onNode() && s.state !== 'online' && <p class="banner bad" role="status"><b>{s.state ?? 'unknown'}</b> {ready?.message ?? link?.lastError ?? 'It has never connected.'} {link?.since && <span class="dim">since <Since at={link.since} /></span>}</p>}
    {!onNode() && (s.state !== 'online' || s.failed || link?.overQuota || link?.renewalError) && <section class="card"><h2>What to do</h2><ul class="findings">{advice(name, s, link).map(([what, todo]) => <li><Badge tone="warn">look</Badge><div>{what}<p class="advice">{todo}</p></div></li>)}</ul><Command>{`edgebus doctor ${name}`}</Command></section>}
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
