// Tokens: those that the hub has made, by name and never by value.
import { useState } from 'preact/hooks';
import { call, get, path, user } from './api';
import { Empty, Failure, Head, Since, useData } from './ui';

export function Tokens() {
  const { data, error, reload } = useData(() => get<any[]>('/tokens'), []);
  const [f, setF] = useState({ user: '', role: 'viewer', nodes: '*', ttl: '90d' });
  const [made, setMade] = useState<{ token: string; id: string }>();
  const [failed, setFailed] = useState<unknown>();
  const field = (k: keyof typeof f) => ({ value: f[k], onInput: (e: any) => setF({ ...f, [k]: e.currentTarget.value }) });
  const make = async (e: Event) => {
    e.preventDefault();
    try { setMade(await call('POST', '/tokens', { ...f, nodes: f.nodes.split(/[\s,]+/).filter(Boolean) })); setFailed(undefined); reload(); } catch (err) { setFailed(err); }
  };
  const revoke = (id: string) => call('DELETE', `/tokens/${path(id)}`).then(reload, setFailed);
  return <>
    <Head title="Tokens" sub={<>For programs, and for people without a password. You are {user.value?.user || 'not signed in'}; users are in the hub's settings (auth.users).</>} />
    <Failure error={error ?? failed} />
    {made && <p class="banner good" role="status"><b>Token {made.id}</b> is shown this once: <code class="token">{made.token}</code></p>}
    {!error && <form class="card form" onSubmit={make}><h2>Make a token</h2><label>For<input required {...field('user')} pattern="[a-z0-9]([a-z0-9.\-]*[a-z0-9])?" autocomplete="off" /></label><label>Role<select {...field('role')}>{['viewer', 'operator', 'controller', 'enroller'].map((r) => <option>{r}</option>)}</select></label><label>Nodes, names and patterns<input {...field('nodes')} /></label><label>Lasts<input {...field('ttl')} /></label><div class="actions"><button class="primary">Make</button></div></form>}
    <section class="card"><table class="cards"><thead><tr><th scope="col">Token</th><th scope="col">User</th><th scope="col">Role</th><th scope="col">Nodes</th><th scope="col">Ends</th><th scope="col"><span class="sr">Revoke</span></th></tr></thead><tbody>
      {(data ?? []).map((t) => <tr key={t.id}><th scope="row"><code>{t.id}</code></th><td data-label="User">{t.user}</td><td data-label="Role">{t.role}</td><td data-label="Nodes">{(t.nodes ?? []).join(', ')}</td><td data-label="Ends"><Since at={t.expires} /></td><td><button type="button" onClick={() => void revoke(t.id)}>Revoke</button></td></tr>)}</tbody></table>
      {data && !data.length && <Empty>No tokens.</Empty>}</section>
  </>;
}
