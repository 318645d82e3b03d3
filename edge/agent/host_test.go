// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/hosttest"
	"github.com/edgebus/edgebus/topics/resource"
)

// newTestAgentOnHost is a rig whose agent has a stand-in for systemd below its root.
func newTestAgentOnHost(t *testing.T) (*testAgent, *hosttest.Systemd) {
	t.Helper()
	r := newTestAgent(t, nil)
	root := r.o.Config.Root
	systemd := hosttest.StartSystemd(t, root)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "run/dbus"), 0o755))
	socket, _, _ := strings.Cut(strings.TrimPrefix(systemd.Address, "unix:path="), ",")
	require.NoError(t, os.Symlink(socket, filepath.Join(root, "run/dbus/system_bus_socket")))
	r.stop()
	r.o.onHost()
	r.o.monitor = reportObserver{r}
	r.start()
	return r, systemd
}

// reportObserver is a Monitor that reports the applications as they are now.
type reportObserver struct{ r *testAgent }

func (reportObserver) Watch(resource.RenderedSpec)             {}
func (reportObserver) Run(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }
func (o reportObserver) Report(report *resource.AgentReport) {
	report.Applications = o.r.applications.Status(o.r.t.Context(), o.r.state.Applied.Applications)
}

// status requires that the report says this of an application.
func (r *testAgent) status(app, want string) {
	r.t.Helper()
	for _, a := range r.reportNow(nil).Applications {
		if a.Name == app {
			require.Equal(r.t, want, strings.TrimSpace(a.Status+" "+a.Message))
			return
		}
	}
	r.t.Fatalf("no application %s is reported", app)
}

// A quadlet of a spec is a service of the host below a scratch root, whose systemd is a stand-in with a D-Bus of its own. A spec with one that
// doesn't start is rolled back, and the service of the spec before runs.
func TestQuadletsAreStartedAndRolledBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the directories of applications belong to root")
	}
	r, systemd := newTestAgentOnHost(t)
	root := r.o.Config.Root

	shop := func(v, service, image string) resource.RenderedSpec {
		file := textFile(service+".container", "[Container]\nImage="+image+"\n")
		s := specOfVersion(v, file)
		s.Applications = []resource.RenderedApplication{{Name: "shop", AppType: resource.AppQuadlet, Files: s.Files}}
		s.Files = nil
		return s
	}
	one := shop("1", "web", "quay.io/acme/web:1")
	r.send("spec", one)
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), "True Applied")
	require.Equal(t, "[Container]\nImage=quay.io/acme/web:1\n", r.file("etc/containers/systemd/shop/web.container"))
	require.Equal(t, "active", systemd.Active("web.service"))
	require.Equal(t, []resource.ApplicationStatus{{Name: "shop", Status: "Running", Ready: "1/1"}}, r.applications.Status(t.Context(), one.Applications))

	systemd.Fail("db.service", true)
	r.send("spec", shop("2", "db", "quay.io/acme/db:1"))
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), "False ApplicationFailed: version 2: application shop: systemd: start db.service")
	require.Equal(t, "none", r.file("etc/containers/systemd/shop/db.container"))
	require.Equal(t, "active", systemd.Active("web.service"), "the version before runs again")

	r.send("spec", specOfVersion("3"))
	r.settle()
	require.Empty(t, systemd.Active("web.service"))
	require.NoDirExists(t, filepath.Join(root, "etc/containers/systemd/shop"))
}

// A spec is applied although an application that is optional doesn't start. Its status says why, and it is started again, also by the next
// agent; one that has started is left alone.
func TestOptionalApplicationsThatDoNotStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the directories of applications belong to root")
	}
	r, systemd := newTestAgentOnHost(t)
	broker := func(name string) resource.RenderedApplication {
		return resource.RenderedApplication{Name: name, AppType: resource.AppQuadlet, Files: []resource.RenderedFile{textFile(name+".container", "[Container]\nImage=x\n")}, Optional: true}
	}
	spec := func(v string, apps ...string) resource.RenderedSpec {
		s := specOfVersion(v)
		for _, name := range apps {
			s.Applications = append(s.Applications, broker(name))
		}
		return s
	}
	systemd.Fail("cam.service", true)
	r.send("spec", spec("1", "cam", "mic"))
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), "True Applied")
	r.status("cam", `Error systemd: start cam.service: the job ended with "failed"`)
	r.status("mic", "Running")
	require.Equal(t, "[Container]\nImage=x\n", r.file("etc/containers/systemd/cam/cam.container"))

	// The next version has it unchanged, and nothing is forgotten.
	r.send("spec", spec("2", "cam", "mic", "led"))
	r.settle()
	r.status("led", "Running")
	r.status("cam", `Error systemd: start cam.service: the job ended with "failed"`)

	r.stop()
	systemd.Fail("cam.service", false)
	systemd.Log()
	r.start()
	r.settle()
	r.status("cam", "Running")
	require.Equal(t, []string{"reload", "start cam.service"}, systemd.Log())

	r.send("spec", spec("3", "mic"))
	r.settle()
	require.Empty(t, systemd.Active("cam.service"))
	require.NoDirExists(t, filepath.Join(r.o.Config.Root, "etc/containers/systemd/cam"))
}
