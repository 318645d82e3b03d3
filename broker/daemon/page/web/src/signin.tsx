// The form to sign in. It leads back to where one came from, since the address stays.
import { useEffect, useState } from 'preact/hooks';
import { call, get, query, user, why, whoami } from './api';
import { Failure } from './ui';

export function SignIn() {
  const [f, setF] = useState({ user: '', password: '', token: '' });
  const [byToken, setByToken] = useState(false);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [provider, setProvider] = useState('');
  useEffect(() => void get('/auth/oidc').then((p) => setProvider(new URL(p.issuer).hostname), () => undefined), []);
  const field = (k: keyof typeof f) => ({ value: f[k], onInput: (e: any) => setF({ ...f, [k]: e.currentTarget.value }) });
  const send = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError(undefined);
    try { await call('POST', '/session', byToken ? { token: f.token.trim() } : { user: f.user, password: f.password }); await whoami(); } catch (err) { setError(err); } finally { setBusy(false); }
  };
  return <main class="signin"><form class="card form" onSubmit={send}><h1>Edgebus</h1>
    {user.value === null && why.value && !/^not signed in/.test(why.value) && <p class="dim">{why.value}</p>}
    {provider && <div class="wide actions"><a class="button primary" href={`/auth/oidc/browser${query({ to: location.pathname + location.search })}`}>Sign in at {provider}</a></div>}
    {byToken ? <label class="wide">Token<input key="token" type="password" required autocomplete="off" {...field('token')} autofocus /></label>
      : <><label class="wide">User<input key="user" required autocomplete="username" {...field('user')} autofocus /></label><label class="wide">Password<input type="password" required autocomplete="current-password" {...field('password')} /></label></>}
    <Failure error={error} />
    <div class="actions"><button type="button" class="plain" onClick={() => setByToken(!byToken)}>{byToken ? 'With a password' : 'With a token'}</button><button class="primary" disabled={busy}>Sign in</button></div></form></main>;
}
