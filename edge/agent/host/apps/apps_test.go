// SPDX-License-Identifier: Apache-2.0

package apps_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/agent/host/apps"
	"github.com/edgebus/edgebus/edge/agent/host/engine"
	"github.com/edgebus/edgebus/edge/agent/host/systemd"
	"github.com/edgebus/edgebus/test/hosttest"
	"github.com/edgebus/edgebus/topics/resource"
)

// The test's own program is the stand-in for a compose program: it notes what it is called with, and where.
func TestMain(m *testing.M) {
	if log := os.Getenv("COMPOSE_STAND_IN"); log != "" {
		dir, _ := os.Getwd()
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil && len(os.Args) > 2 {
			fmt.Fprintln(f, filepath.Base(dir), strings.Join(os.Args[1:], " "))
		}
		if _, err := os.Stat("broken"); err == nil {
			fmt.Fprintln(os.Stderr, "services.web.image must be a string")
			os.Exit(15)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func textFile(path, text string) resource.RenderedFile {
	return resource.RenderedFile{Path: path, Type: resource.FileRegular, Mode: "0644", Content: resource.Content{Text: text}}
}

func quadletApp(name string, files ...resource.RenderedFile) resource.RenderedApplication {
	return resource.RenderedApplication{Name: name, AppType: resource.AppQuadlet, Files: files}
}

func composeApp(name string, files ...resource.RenderedFile) resource.RenderedApplication {
	return resource.RenderedApplication{Name: name, AppType: resource.AppCompose, Files: files}
}

type appList = []resource.RenderedApplication

func TestPlan(t *testing.T) {
	web := quadletApp("shop", textFile("web.container", "1"), textFile("db.container", "1"), textFile("db.volume", ""), textFile("nginx.conf", "1"))
	variables := web
	variables.EnvVars = map[string]string{"A": "1"}
	for _, c := range []struct {
		name     string
		from, to appList
		changed  []string
		plan     string
	}{
		{"nothing", nil, nil, nil, ""},
		{"the same", appList{web}, appList{web}, nil, ""},
		{"a new one: what is needed first", nil, appList{web}, nil, "reload; start db-volume.service; start db.service; start web.service"},
		{"one that is gone, in the other order, before systemd forgets it", appList{web}, nil, nil, "stop web.service; stop db.service; stop db-volume.service; reload"},
		{"a unit has changed", appList{web}, appList{quadletApp("shop", textFile("web.container", "2"), textFile("db.container", "1"), textFile("db.volume", ""), textFile("nginx.conf", "1"))}, nil, "reload; restart web.service"},
		{"a unit is new, one is gone", appList{web}, appList{quadletApp("shop", textFile("web.container", "1"), textFile("cache.container", "1"), textFile("db.volume", ""), textFile("nginx.conf", "1"))}, nil, "stop db.service; reload; start cache.service"},
		{"a file that is no unit's", appList{web}, appList{quadletApp("shop", textFile("web.container", "1"), textFile("db.container", "1"), textFile("db.volume", ""), textFile("nginx.conf", "2"))}, nil, "reload; restart db-volume.service; restart db.service; restart web.service"},
		{"a drop-in", appList{web}, appList{quadletApp("shop", append(web.Files[:4:4], textFile("web.container.d/10.conf", "x"))...)}, nil, "reload; restart web.service"},
		{"variables", appList{web}, appList{variables}, nil, "reload; restart db-volume.service; restart db.service; restart web.service"},
		{"a file that was put back", appList{web}, appList{web}, []string{"/etc/containers/systemd/shop/db.container", "/etc/hosts"}, "reload; restart db.service"},
		{"compose", nil, appList{composeApp("mail", textFile("compose.yaml", "1"))}, nil, "up mail"},
		{"compose: its file", appList{composeApp("mail", textFile("compose.yaml", "1"))}, appList{composeApp("mail", textFile("compose.yaml", "2"))}, nil, "up mail"},
		{"compose: another file", appList{composeApp("mail", textFile("compose.yaml", "1"), textFile("x", "1"))}, appList{composeApp("mail", textFile("compose.yaml", "2"), textFile("x", "2"))}, nil, "recreate mail"},
		{"compose is gone", appList{composeApp("mail", textFile("compose.yaml", "1"))}, nil, nil, "down mail"},
		{"another type", appList{composeApp("shop", textFile("compose.yaml", "1"))}, appList{quadletApp("shop", textFile("web.container", ""))}, nil, "down shop; reload; start web.service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var plan []string
			for _, a := range apps.Plan(c.from, c.to, c.changed) {
				what := a.Unit
				if a.Do == apps.DoUp || a.Do == apps.DoDown || a.Do == apps.DoRecreate {
					what = a.App
				}
				plan = append(plan, strings.TrimSpace(a.Do+" "+what))
			}
			require.Equal(t, c.plan, strings.Join(plan, "; "))
		})
	}
}

func TestServiceNames(t *testing.T) {
	for file, name := range map[string]string{
		"foo.container": "foo.service", "foo.pod": "foo-pod.service", "foo.volume": "foo-volume.service", "foo.network": "foo-network.service",
		"foo.kube": "foo.service", "foo.image": "foo-image.service", "foo.build": "foo-build.service", "foo.conf": "", "foo": "", ".container": "",
		"foo@.container": "", "foo@1.container": "foo@1.service",
	} {
		require.Equal(t, name, apps.ServiceName(file, ""), file)
	}
	require.Equal(t, "own.service", apps.ServiceName("foo.pod", "# x\n[Pod]\nServiceName = own\n"))
	require.Equal(t, "foo.service", apps.ServiceName("foo.container", "[Service]\nServiceName=own\n"))
	require.Equal(t, "foo@blue.service", apps.ServiceName("foo@.container", "[Install]\nDefaultInstance=blue\n"))
}

func TestFiles(t *testing.T) {
	app := quadletApp("shop", textFile("web.container", "x"), textFile("conf/a", "y"))
	app.EnvVars = map[string]string{"B": "two words", "A": "$1"}
	files, err := apps.Files(app)
	require.NoError(t, err)
	texts := map[string]string{}
	for _, f := range files {
		texts[f.Path] = f.Text
	}
	require.Equal(t, map[string]string{
		"/etc/containers/systemd/shop": "", "/etc/containers/systemd/shop/web.container": "x", "/etc/containers/systemd/shop/conf/a": "y",
		"/etc/containers/systemd/shop/.edgebus.env":                        "A=$1\nB=two words\n",
		"/etc/containers/systemd/shop/web.container.d/90-edgebus-env.conf": "[Container]\nEnvironmentFile=/etc/containers/systemd/shop/.edgebus.env\n",
	}, texts)

	app = composeApp("mail", textFile("compose.yaml", "x"))
	app.EnvVars = map[string]string{"A": "plain", "B": "two $words", "C": `it's "x"$`}
	files, err = apps.Files(app)
	require.NoError(t, err)
	require.Equal(t, "/etc/compose/mail/.env", files[1].Path)
	require.Equal(t, "A=plain\nB='two $words'\nC=\"it's \\\"x\\\"\\$\"\n", files[1].Text)
	require.Equal(t, "0600", files[1].Mode)

	for text, bad := range map[string]resource.RenderedApplication{
		"is there twice":     {Name: "a", AppType: "compose", Files: []resource.RenderedFile{textFile(".env", "")}, EnvVars: map[string]string{"A": ""}},
		"a value has one":    {Name: "a", AppType: "compose", EnvVars: map[string]string{"A": "1\n2"}},
		"is outside":         composeApp("a", textFile("../b/x", "")),
		"helm\" is not know": {Name: "a", AppType: "helm"},
	} {
		_, err := apps.Files(bad)
		require.ErrorContains(t, err, text)
	}
}

// testHost is a scratch root with a stand-in for systemd and one for podman.
type testHost struct {
	root    string
	systemd *hosttest.Systemd
	engine  *hosttest.Engine
	apps    *apps.Applications
	log     string
}

func newTestHost(t *testing.T) *testHost {
	r := &testHost{root: t.TempDir()}
	r.systemd, r.engine = hosttest.StartSystemd(t, r.root), hosttest.StartEngine(t)
	self, err := os.Executable()
	require.NoError(t, err)
	r.log = filepath.Join(t.TempDir(), "log")
	t.Setenv("COMPOSE_STAND_IN", r.log)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	s := systemd.New(r.systemd.Address, func() {})
	t.Cleanup(func() { _ = s.Close() })
	r.apps = apps.New(apps.Options{
		Root: r.root, Systemd: s, Engines: []apps.Engine{engine.New("podman", r.engine.Socket)}, Compose: [][]string{{"no-such-program"}, {self}},
	})
	return r
}

// write puts the files of applications below the root, and removes all others.
func (r *testHost) write(t *testing.T, all appList) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(r.root, "etc")))
	for _, app := range all {
		files, err := r.apps.Files(app)
		require.NoError(t, err)
		for _, f := range files {
			at := filepath.Join(r.root, f.Path)
			if f.Type == resource.FileDirectory {
				require.NoError(t, os.MkdirAll(at, 0o755))
				continue
			}
			require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
			require.NoError(t, os.WriteFile(at, []byte(f.Text), 0o600))
		}
	}
}

func switchApps(t *testing.T, a *apps.Applications, from, to appList) error {
	t.Helper()
	_, err := a.Switch(t.Context(), from, to, nil)
	return err
}

func TestQuadletsRun(t *testing.T) {
	r := newTestHost(t)
	one := appList{quadletApp("shop", textFile("web.container", "1"), textFile("db.container", "1"), textFile("db.volume", ""))}
	require.Equal(t, "Error", r.apps.Status(t.Context(), one)[0].Status, "there is no such unit yet")
	r.write(t, one)
	require.NoError(t, switchApps(t, r.apps, nil, one))
	require.Equal(t, []resource.ApplicationStatus{{Name: "shop", Status: "Running", Ready: "2/2"}}, r.apps.Status(t.Context(), one))
	require.Equal(t, []string{"reload", "start db-volume.service", "start db.service", "start web.service"}, r.systemd.Log())

	r.systemd.Add("db.service", "failed", "failed")
	s := r.apps.Status(t.Context(), one)[0]
	require.Equal(t, resource.ApplicationStatus{Name: "shop", Status: "Error", Ready: "1/2", Message: "db.service: systemd says failed, exit-code"}, s)

	two := appList{quadletApp("shop", textFile("web.container", "2"))}
	r.write(t, two)
	require.NoError(t, switchApps(t, r.apps, one, two))
	require.Equal(t, []string{"stop db.service", "stop db-volume.service", "reload", "restart web.service"}, r.systemd.Log())
	require.Equal(t, "1/1", r.apps.Status(t.Context(), two)[0].Ready)

	r.write(t, nil)
	require.NoError(t, switchApps(t, r.apps, two, nil))
	require.Empty(t, r.systemd.Active("web.service"))
}

func TestAQuadletThatDoesNotStart(t *testing.T) {
	r := newTestHost(t)
	one := appList{quadletApp("shop", textFile("web.container", "1"))}
	r.systemd.Fail("web.service", true)
	r.write(t, one)
	require.EqualError(t, switchApps(t, r.apps, nil, one), `application shop: systemd: start web.service: the job ended with "failed"`)
	two := appList{one[0], quadletApp("other", textFile("web.container", "1"))}
	require.ErrorContains(t, switchApps(t, r.apps, one, two), "applications shop and other both have the service web.service")
	none := appList{quadletApp("empty", textFile("a.txt", ""))}
	require.Equal(t, "Error", r.apps.Status(t.Context(), none)[0].Status)
}

// An update leaves optional applications for later: it stops what has changed of them, and starts nothing.
func TestOptionalQuadletsAreStartedByThemselves(t *testing.T) {
	r := newTestHost(t)
	broker := func(v string) resource.RenderedApplication {
		app := quadletApp("cam", textFile("cam.container", v))
		app.Optional = true
		return app
	}
	shop := quadletApp("shop", textFile("web.container", "1"))
	r.systemd.Fail("cam.service", true)
	one := appList{broker("1"), shop}
	r.write(t, one)
	unstarted, err := r.apps.Switch(t.Context(), nil, one, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"cam"}, unstarted)
	require.Equal(t, []string{"reload", "start web.service"}, r.systemd.Log())
	require.EqualError(t, r.apps.Start(t.Context(), one[0]), `systemd: start cam.service: the job ended with "failed"`)
	r.systemd.Fail("cam.service", false)
	require.NoError(t, r.apps.Start(t.Context(), one[0]))
	require.Equal(t, "active", r.systemd.Active("cam.service"))
	r.systemd.Log()

	two := appList{broker("2"), shop}
	r.write(t, two)
	unstarted, err = r.apps.Switch(t.Context(), one, two, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"cam"}, unstarted)
	require.Equal(t, []string{"reload", "stop cam.service"}, r.systemd.Log())

	// They are named as well when something else fails.
	r.systemd.Fail("db.service", true)
	three := appList{broker("3"), quadletApp("shop", textFile("db.container", "1"))}
	r.write(t, three)
	unstarted, err = r.apps.Switch(t.Context(), two, three, nil)
	require.ErrorContains(t, err, "application shop: systemd: start db.service")
	require.Equal(t, []string{"cam"}, unstarted)
}

func TestComposeRuns(t *testing.T) {
	r := newTestHost(t)
	one := appList{composeApp("mail", textFile("compose.yaml", "1"), textFile("a", "1"))}
	r.write(t, one)
	require.NoError(t, switchApps(t, r.apps, nil, one))
	log, err := os.ReadFile(r.log)
	require.NoError(t, err)
	require.Equal(t, "mail --project-name mail up --detach --remove-orphans\n", string(log))
	require.Equal(t, "Preparing", r.apps.Status(t.Context(), one)[0].Status)

	project := map[string]string{"com.docker.compose.project": "mail"}
	r.engine.Run(hosttest.Container{Name: "mail_smtp_1", State: "running", Labels: project, Restarts: 3})
	r.engine.Run(hosttest.Container{Name: "mail_init_1", State: "exited", Labels: project})
	require.Equal(t, resource.ApplicationStatus{Name: "mail", Status: "Running", Ready: "2/2", Restarts: 3}, r.apps.Status(t.Context(), one)[0])
	r.engine.Run(hosttest.Container{Name: "mail_init_1", State: "exited", ExitCode: 1, Labels: project})
	require.Equal(t, resource.ApplicationStatus{Name: "mail", Status: "Error", Ready: "1/2", Restarts: 3, Message: "mail_init_1: it exited with 1"}, r.apps.Status(t.Context(), one)[0])

	r.write(t, nil)
	require.NoError(t, switchApps(t, r.apps, one, nil))
	require.Empty(t, r.engine.Left())
	broken := appList{composeApp("mail", textFile("compose.yaml", "1"), textFile("broken", ""))}
	r.write(t, broken)
	require.ErrorContains(t, switchApps(t, r.apps, nil, broken), "exit status 15: services.web.image must be a string")
}

// Where the host has nothing to run applications with, their status says what is missing.
func TestAHostWithNothing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	a := apps.New(apps.Options{
		Root: t.TempDir(), Systemd: systemd.New("unix:path="+none, func() {}), Engines: []apps.Engine{engine.New("podman", none)}, Compose: [][]string{{"no-such-program"}},
	})
	both := appList{composeApp("mail", textFile("compose.yaml", "1")), quadletApp("shop", textFile("web.container", "1"))}
	s := a.Status(t.Context(), both)
	require.Equal(t, "Error", s[0].Status)
	require.Contains(t, s[0].Message, "install podman-compose")
	require.Equal(t, "Error", s[1].Status)
	require.Contains(t, s[1].Message, "no D-Bus at ")
	require.NoError(t, switchApps(t, a, both, nil), "what can't be there needs no stopping")
	both[1].Optional = true
	require.NoError(t, switchApps(t, a, nil, both[1:]), "nor does what is optional need systemd")
	require.ErrorContains(t, a.Start(t.Context(), both[1]), "no D-Bus at ")
}

func FuzzServiceName(f *testing.F) {
	f.Add("foo@.container", "[Container]\nServiceName=x\n[Install]\nDefaultInstance=a")
	f.Add("foo.pod", "[Pod]\nServiceName=../../x")
	f.Fuzz(func(t *testing.T, name, text string) {
		got := apps.ServiceName(filepath.Base(name), text)
		if got != "" {
			require.True(t, strings.HasSuffix(got, ".service") && got != ".service", "%q", got)
		}
	})
}

// A compose program that hangs is passed over for the next one.
func TestAComposeProgramThatHangsIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	program := func(name, script string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
		return path
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc/compose/a"), 0o755))
	log := filepath.Join(dir, "log")
	a := apps.New(apps.Options{
		Root: dir, VersionTimeout: 100 * time.Millisecond, Compose: [][]string{
			{program("hangs", "sleep 1000")}, {program("works", `echo "$@" >>`+log)},
		},
	})
	_, err := a.Switch(t.Context(), nil, []resource.RenderedApplication{{Name: "a", AppType: resource.AppCompose}}, nil)
	require.NoError(t, err)
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(text), "up")
}
