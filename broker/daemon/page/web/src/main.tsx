// The page of the hub, and with fewer screens that of a node.
import { render } from 'preact';
import { useEffect } from 'preact/hooks';
import { ErrorBoundary, lazy, LocationProvider, Route, Router, useLocation } from 'preact-iso';
import '../style.css';
import { call, mayWrite, onNode, user, whoami } from './api';
import { link } from './live';
import { Overview } from './overview';
import { Devices, Nodes } from './lists';
import { SignIn } from './signin';

const Device = lazy(() => import('./device').then((m) => m.Device));
const Node = lazy(() => import('./node').then((m) => m.Node));
const Approvals = lazy(() => import('./approvals').then((m) => m.Approvals));
const Rollouts = lazy(() => import('./rollouts').then((m) => m.Rollouts));
const Topics = lazy(() => import('./topics').then((m) => m.Topics));
const AllEvents = lazy(() => import('./events').then((m) => m.AllEvents));
const Objects = lazy(() => import('./objects').then((m) => m.Objects));
const ObjectYAML = lazy(() => import('./objects').then((m) => m.ObjectYAML));
const Tokens = lazy(() => import('./tokens').then((m) => m.Tokens));

const Home = () => (onNode() ? <Node /> : <Overview />);
const Missing = () => <p class="empty">There is nothing here. <a href="/ui/">To the overview</a></p>;

function Navigation() {
  const at = useLocation();
  const screens: [string, string][] = onNode() ? [['/ui/', 'Node'], ['/ui/devices', 'Devices'], ['/ui/topics', 'Topics']]
    : [['/ui/', 'Overview'], ['/ui/devices', 'Devices'], ['/ui/nodes', 'Nodes'], ...(mayWrite() ? [['/ui/approvals', 'Approvals'] as [string, string]] : []), ['/ui/rollouts', 'Rollouts'], ['/ui/topics', 'Topics'], ['/ui/events', 'Events'], ['/ui/objects', 'Objects'], ...(mayWrite() ? [['/ui/tokens', 'Tokens'] as [string, string]] : [])];
  const here = (href: string) => (href === '/ui/' ? at.path.replace(/\/$/, '') === '/ui' : at.path.startsWith(href));
  const signOut = () => void call('DELETE', '/session').finally(() => location.assign('/ui/'));
  const u = user.value!;
  return <header class="top"><a class="brand" href="/ui/"><svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true"><rect width="32" height="32" rx="7" /><path d="M7 16h18M11 16V9m10 7v7" /><circle cx="11" cy="8" r="2.6" /><circle cx="21" cy="24" r="2.6" /></svg>Edgebus{onNode() && <small>{onNode()}</small>}</a>
    <nav aria-label="Screens">{screens.map(([href, name]) => <a href={href} aria-current={here(href) ? 'page' : undefined}>{name}</a>)}</nav>
    <div class="who"><span class="dim">{u.user || 'on this machine'}{u.roles?.[0] && ` · ${u.roles[0]}`}</span>{u.browser && u.user && <button type="button" onClick={signOut}>Sign out</button>}</div></header>;
}

// Lost says that what is shown is not live, since when, and that it comes back by itself.
function Lost() {
  if (link.value.state !== 'lost') return null;
  return <p class="lost" role="status"><b>Not live since {new Date(link.value.since).toLocaleTimeString()}</b> Connecting again by itself. What is shown may be old, and nothing can be set.</p>;
}

function App() {
  useEffect(() => {
    void whoami();
    const key = (e: KeyboardEvent) => {
      const t = e.target as HTMLElement;
      if (e.key !== '/' || e.ctrlKey || e.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(t.tagName)) return;
      e.preventDefault();
      const box = document.querySelector<HTMLInputElement>('[data-search]');
      if (box) box.focus(); else { history.pushState(null, '', '/ui/devices'); dispatchEvent(new PopStateEvent('popstate')); setTimeout(() => document.querySelector<HTMLInputElement>('[data-search]')?.focus(), 50); }
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);
  if (user.value === undefined) return <p class="loading">Loading…</p>;
  if (user.value === null) return <SignIn />;
  return <LocationProvider scope="/ui">
    <a class="skip" href="#main">To the content</a>
    <Navigation /><Lost />
    <main id="main" tabIndex={-1}><ErrorBoundary><Router>
      <Route path="/ui/" component={Home} />
      <Route path="/ui/devices" component={Devices} /><Route path="/ui/devices/:namespace/:device" component={Device} />
      <Route path="/ui/nodes" component={Nodes} /><Route path="/ui/nodes/:node" component={Node} />
      <Route path="/ui/approvals" component={Approvals} /><Route path="/ui/rollouts" component={Rollouts} /><Route path="/ui/topics" component={Topics} />
      <Route path="/ui/events" component={AllEvents} /><Route path="/ui/objects" component={Objects} /><Route path="/ui/objects/:kind" component={Objects} />
      <Route path="/ui/objects/:kind/:namespace/:name" component={ObjectYAML} /><Route path="/ui/tokens" component={Tokens} /><Route default component={Missing} />
    </Router></ErrorBoundary></main></LocationProvider>;
}

render(<App />, document.getElementById('app')!);
