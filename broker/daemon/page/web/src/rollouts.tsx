// Fleets and upgrades: how far they are, who failed and why, and what stops them.
import { useState } from 'preact/hooks';
import { get, mayWrite, patch, path, ROOT } from './api';
import { Badge, Bar, Command, Confirm, Empty, Failure, Head, useData } from './ui';

interface Ask { title: string; count: number; act: string; body: string[]; done: () => Promise<unknown>; danger?: boolean }

export function Rollouts() {
  const { data, error, reload } = useData(async () => {
    const [fleets, upgrades, versions, nodes] = await Promise.all([get(`${ROOT}/fleets`), get(`${ROOT}/upgrades`), get(`${ROOT}/templateversions`).catch(() => ({ items: [] })), get(`${ROOT}/nodes?summary=metadata.owner`)]);
    return { fleets: fleets.items as any[], upgrades: upgrades.items as any[], versions: versions.items as any[], owners: nodes.summary.counts['metadata.owner'] as Record<string, number> };
  }, [], 4_000);
  const [ask, setAsk] = useState<Ask>();
  const [failed, setFailed] = useState<unknown>();
  const may = mayWrite();
  const now = (p: Promise<unknown>) => p.then(() => { setFailed(undefined); reload(); }, setFailed);
  return <>
    <Head title="Rollouts" sub="Fleets give their nodes a template; upgrades give them a version" />
    <Failure error={error ?? failed} retry={reload} />
    {data && !data.fleets.length && !data.upgrades.length && <Empty>No fleets or upgrades yet. <a href="/ui/objects/fleets">Make a fleet</a> or <a href="/ui/objects/upgrades">an upgrade</a> as YAML; the dry run shows what would change.</Empty>}
    {data?.upgrades.map((u) => {
      const r = u.status?.rollout ?? { nodes: 0 }, name = u.metadata.name, at = `${ROOT}/upgrades/${path(name)}`;
      const goal = u.spec.version || Object.keys(u.spec.settings ?? {}).join(', ') || (u.spec.images ?? []).join(', ');
      const bad = (u.status?.nodes ?? []).map((n: any) => ({ node: n.nodeName, ...(n.history ?? []).at(-1) })).filter((n: any) => /failed/.test(n.operationStatus ?? ''));
      const previous = (u.status?.nodes ?? []).map((n: any) => n.history?.at(-1)).find((h: any) => h?.operationStatus === 'upgrade_success')?.fromVersion;
      const waits = u.spec.requireConfirmation && r.reason && /confirm/i.test(r.reason);
      return <section class="card" key={u.metadata.uid}><h2>Upgrade {name} <span class="dim">to {goal}</span> {u.spec.paused ? <Badge tone="warn">paused</Badge> : (r.succeeded ?? 0) >= r.nodes && r.nodes ? <Badge tone="good">done</Badge> : r.reason ? <Badge tone={r.failed ? 'bad' : 'warn'}>{r.reason}</Badge> : <Badge tone="info">under way</Badge>}</h2>
        <Bar label={`Upgrade ${name}`} total={r.nodes} parts={[['done', r.succeeded ?? 0, 'good'], ['under way', r.upgrading ?? 0, 'info'], ['failed', r.failed ?? 0, 'bad'], ['to come', r.pending ?? 0, 'idle']]} />
        <p class="dim">{r.succeeded ?? 0} done · {r.upgrading ?? 0} under way · {r.failed ?? 0} failed · {r.pending ?? 0} to come · {r.nodes} nodes</p>{r.message && <p>{r.message}</p>}
        {bad.length > 0 && <table class="cards"><thead><tr><th scope="col">Node</th><th scope="col">Result</th><th scope="col">Why</th></tr></thead><tbody>{bad.slice(0, 50).map((n: any) => <tr><th scope="row"><a href={`/ui/nodes/${path(n.node)}`}>{n.node}</a></th><td data-label="Result"><Badge tone="bad">{n.operationStatus.replace(/_/g, ' ')}</Badge></td><td data-label="Why" class="why">{n.reason}</td></tr>)}</tbody></table>}
        {may && <div class="actions">{u.spec.paused ? <button type="button" onClick={() => setAsk({ title: `Resume ${name}`, count: r.pending ?? 0, act: 'Resume', body: [`${r.pending ?? 0} nodes get ${goal}`], done: () => patch(at, { spec: { paused: false } }) })}>Resume…</button> : <button type="button" onClick={() => now(patch(at, { spec: { paused: true } }))}>Pause</button>}
          {waits && <button type="button" class="primary" onClick={() => setAsk({ title: `Begin ${name}`, count: r.nodes, act: 'Begin', body: [`${r.nodes} nodes get ${goal}`], done: () => patch(at, { spec: { confirmed: u.spec.version || r.spec } }) })}>Begin…</button>}
          {u.spec.version && previous && <button type="button" class="danger" onClick={() => setAsk({ title: `Undo ${name}`, count: (r.succeeded ?? 0) + (r.upgrading ?? 0), act: `Back to ${previous}`, danger: true, body: [`${r.succeeded ?? 0} nodes that have ${goal} get ${previous} again`], done: () => patch(at, { spec: { version: previous, allowDowngrade: true, paused: false } }) })}>Undo…</button>}</div>}
        <Command>{`kubectl patch upgrade ${name} --type merge -p '{"spec":{"paused":true}}'`}</Command></section>;
    })}
    {data?.fleets.map((f) => {
      const r = f.status?.rollout ?? {}, name = f.metadata.name, at = `${ROOT}/fleets/${path(name)}`, n = r.nodes ?? data.owners[`Fleet/${name}`] ?? 0;
      const before = data.versions.filter((v) => v.spec.fleet === name && v.metadata.name !== r.templateVersion).sort((a, b) => Date.parse(b.metadata.creationTimestamp) - Date.parse(a.metadata.creationTimestamp))[0];
      return <section class="card" key={f.metadata.uid}><h2>Fleet {name} <span class="dim">{r.templateVersion}</span> {f.spec.paused ? <Badge tone="warn">paused</Badge> : r.reason ? <Badge tone={r.failedNodes ? 'bad' : 'warn'}>{r.reason}</Badge> : r.failedNodes ? <Badge tone="bad">{r.failedNodes} failed</Badge> : r.finishedAt ? <Badge tone="good">done</Badge> : n ? <Badge tone="info">under way</Badge> : <Badge tone="idle">no nodes</Badge>}</h2>
        <Bar label={`Fleet ${name}`} total={n} parts={[['have it', r.updated ?? 0, 'good'], ['under way', r.updating ?? 0, 'info'], ['failed', r.failedNodes ?? 0, 'bad'], ['to come', Math.max(0, n - (r.updated ?? 0) - (r.updating ?? 0) - (r.failedNodes ?? 0)), 'idle']]} />
        <p class="dim">{r.updated ?? 0} of {n} nodes have it{r.batches ? ` · batch ${r.batch} of ${r.batches}` : ''}{r.failedNodes ? ` · ${r.failedNodes} failed` : ''}{r.rolledBackFrom ? ` · rolled back from ${r.rolledBackFrom}` : ''}</p>{r.message && <p>{r.message}</p>}
        {may && !(f.metadata.owner) && <div class="actions">{f.spec.paused ? <button type="button" onClick={() => setAsk({ title: `Resume ${name}`, count: n, act: 'Resume', body: [`up to ${n} nodes get ${r.templateVersion ?? 'the newest version'}`], done: () => patch(at, { spec: { paused: false } }) })}>Resume…</button> : <button type="button" onClick={() => now(patch(at, { spec: { paused: true } }))}>Pause</button>}
          {before && <button type="button" class="danger" onClick={() => setAsk({ title: `Undo the rollout of ${name}`, count: n, act: 'Undo', danger: true, body: [`${n} nodes get the template of ${before.metadata.name} again`], done: () => patch(at, { metadata: { annotations: { 'fleet-controller/rollBackTo': before.metadata.name } } }) })}>Undo…</button>}
          <a class="button" href={`/ui/objects/fleets/_/${path(name)}`}>Edit…</a></div>}
        <Command>{`kubectl patch fleet ${name} --type merge -p '{"spec":{"paused":true}}'`}</Command></section>;
    })}
    {ask && <Confirm title={ask.title} count={ask.count} noun="nodes" act={ask.act} danger={ask.danger} onDone={async () => { await ask.done(); reload(); }} onClose={() => setAsk(undefined)}><ul>{ask.body.map((b) => <li>{b}</li>)}</ul></Confirm>}
  </>;
}
