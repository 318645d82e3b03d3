package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/agent/host/hosttest"
	"github.com/edgebus/edgebus/topics/resource"
)

// A quadlet of a spec is a service of the host below a scratch root, whose systemd is a stand-in with a D-Bus of its own. A spec with one that
// doesn't start is rolled back, and the service of the spec before runs.
func TestQuadletsAreStartedAndRolledBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the directories of applications belong to root")
	}
	r := newRig(t, nil)
	root := r.o.Config.Root
	systemd := hosttest.StartSystemd(t, root)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "run/dbus"), 0o755))
	socket, _, _ := strings.Cut(strings.TrimPrefix(systemd.Address, "unix:path="), ",")
	require.NoError(t, os.Symlink(socket, filepath.Join(root, "run/dbus/system_bus_socket")))
	r.stop()
	r.o.onHost()
	r.start()

	shop := func(v, service, image string) resource.RenderedSpec {
		file := text(service+".container", "[Container]\nImage="+image+"\n")
		s := version(v, file)
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

	r.send("spec", version("3"))
	r.settle()
	require.Empty(t, systemd.Active("web.service"))
	require.NoDirExists(t, filepath.Join(root, "etc/containers/systemd/shop"))
}
