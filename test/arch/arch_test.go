// Package arch holds the architecture's rules as tests: who may import whom, which
// library appears where, and what a file may not do. Each failure says the rule.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/edgebus/edgebus/"

// pkg is what the go command knows about a package. Dir and import path are
// relative to the repository's root.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
	CgoFiles     []string
	Deps         []string
}

func (p pkg) path() string { return strings.TrimPrefix(p.ImportPath, module) }

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// list asks the go command about the repository's packages.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags", "testprogram", "-json=ImportPath,Imports,TestImports,XTestImports,GoFiles,CgoFiles,Deps", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var all []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// within is whether path is dir or below it.
func within(path string, dirs ...string) bool {
	for _, dir := range dirs {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// isStandard is whether a package belongs to Go itself: only others have a domain
// in their first element.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestImportRules(t *testing.T) {
	for _, p := range list(t) {
		for _, imported := range p.Imports {
			if why := forbidden(p.path(), imported); why != "" {
				t.Errorf("%s imports %s: %s", p.path(), strings.TrimPrefix(imported, module), why)
			}
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			if why := forbiddenInTests(p.path(), imported); why != "" {
				t.Errorf("tests of %s import %s: %s", p.path(), strings.TrimPrefix(imported, module), why)
			}
		}
	}
}

// forbidden is the rule that from breaks by importing to, or nothing.
func forbidden(from, to string) string {
	if why := forbiddenLibrary(from, to); why != "" {
		return why
	}
	if !strings.HasPrefix(to, module) {
		return ""
	}
	to = strings.TrimPrefix(to, module)
	if within(to, "test") && !within(from, "test") {
		return "nothing but tests imports test"
	}
	if suite := filepath.Base(to); strings.HasSuffix(suite, "test") && !within(from, "test") && !strings.HasSuffix(from, "test") {
		return "a conformance suite is for tests, not for programs"
	}
	if strings.Contains(to, "/cmd/") {
		return "a command is nobody's library; put what is shared into the package that it starts"
	}
	switch role, _, _ := strings.Cut(from, "/"); role {
	case "topics":
		return forbiddenInTopics(from, to)
	case "broker":
		return forbiddenInBroker(from, to)
	case "cloud", "edge":
		return forbiddenInRole(role, from, to)
	case "mappers":
		return forbiddenInMappers(from, to)
	case "configs":
		if !within(to, "topics", "configs") && !(from == "configs/daemon/mqttserver" && within(to, "broker")) && to != "broker/acl" {
			return "configs knows settings, not those who use them"
		}
	}
	return ""
}

// forbiddenLibrary says where the libraries of others may appear.
func forbiddenLibrary(from, to string) string {
	if within(from, "topics") && !isStandard(to) && !strings.HasPrefix(to, module) &&
		(from != "topics/link" || !within(to, "github.com/fxamacker/cbor")) {
		return "the contract is a leaf: the standard library only, and in topics/link one codec"
	}
	for _, rule := range []struct {
		library string
		homes   []string
		why     string
	}{
		{"github.com/mochi-mqtt", []string{"broker"}, "mochi appears only in broker, and its types don't leave it"},
		{"github.com/eclipse/paho.golang", []string{"broker/client"}, "paho appears only in broker/client"},
		{"go.etcd.io/bbolt", []string{"cloud/store", "edge/store", "configs/daemon/boltfile"}, "bbolt appears only in the store packages, and where they open it"},
		{"github.com/spf13/viper", []string{"configs"}, "viper appears only in configs"},
		{"github.com/godbus/dbus", []string{"edge/agent/host"}, "D-Bus appears only in edge/agent/host"},
		{"google.golang.org/grpc", []string{"edge/discovery"}, "gRPC appears only in edge/discovery"},
		{"github.com/go-git/go-git", []string{"cloud/sources"}, "git and registries appear only in cloud/sources"},
		{"github.com/google/go-containerregistry", []string{"cloud/sources"}, "git and registries appear only in cloud/sources"},
		{"k8s.io/client-go", []string{"cloud/control"}, "client-go is for tests: what is linked is cloud/client, and the queue in cloud/control"},
		{"github.com/stretchr/testify", nil, "testify is for tests"},
		{"pgregory.net/rapid", nil, "rapid is for tests"},
		{"github.com/simonvetter/modbus", []string{"mappers/modbus"}, "a protocol's library belongs to its driver"},
		{"github.com/gopcua/opcua", nil, "gopcua is for tests: it must not be pointed at servers that are not trusted"},
	} {
		inside := within(from, rule.homes...)
		if rule.library == "github.com/mochi-mqtt" && from != "broker" {
			inside = within(from, "broker/session") // the packet codec
		}
		if within(to, rule.library) && !inside && !within(from, "test") && !strings.HasSuffix(from, "test") {
			return rule.why
		}
	}
	return ""
}

func forbiddenInTopics(from, to string) string {
	if !within(to, "topics") {
		return "the contract imports nothing of ours"
	}
	if from == "topics" || (from == "topics/resource" && within(to, "topics/link")) || (from == "topics/link" && within(to, "topics/resource")) {
		return "topics, topics/resource and topics/link import each other downwards only"
	}
	return ""
}

func forbiddenInBroker(from, to string) string {
	if within(to, "cloud", "edge", "mappers") {
		return "the broker serves cloud and edge, and knows neither of them"
	}
	if within(to, "configs") && !slices.Contains([]string{"configs/limits", "configs/password", "configs/daemon", "configs/daemon/datadir"}, to) {
		return "the broker has options; only configs/daemon/mqttserver makes them of settings"
	}
	return ""
}

// forbiddenInRole keeps cloud and edge apart, and their parts from each other:
// they state what they need, and cloud.go and edge.go connect them.
func forbiddenInRole(role, from, to string) string {
	other := map[string]string{"cloud": "edge", "edge": "cloud"}[role]
	if within(to, other) {
		return "cloud and edge meet on the wire only"
	}
	if within(to, "mappers") {
		return "mappers are MQTT clients: nobody links them"
	}
	if from == role || within(from, role+"/cmd") || !within(to, role) {
		return ""
	}
	part := strings.Split(from, "/")[1]
	switch {
	case within(from, "edge/agent") && from != "edge/agent" && within(to, "edge/agent") && !within(to, strings.Join(strings.Split(from, "/")[:3], "/")):
		return "edge/agent wires its parts, which know neither it nor each other"
	case within(to, role+"/"+part), from == "edge/agent" && to == "edge/upgrade": // a part of the program edgeagent
		return ""
	case to == role:
		return "the wiring knows the parts, not the other way round"
	case to == role+"/store":
		return "" // its types, and its readers, writers and watchers
	case within(to, role+"/store"):
		return "only " + role + ".go chooses a store's backend"
	case within(from, "cloud/objects", "cloud/control"):
		return "the object layer and the controllers' runtime know the store, and no other part"
	case from == "cloud/api" && to == "cloud/control":
		return "the API serves objects, and controls nothing"
	case within(to, "cloud/objects", "cloud/control", "cloud/rollout", "cloud/templates", "cloud/images"):
		return ""
	default:
		return "parts of a role don't import their siblings; state an interface, and " + role + ".go connects them"
	}
}

func forbiddenInMappers(from, to string) string {
	if within(to, "cloud", "edge") {
		return "a mapper is an MQTT client: it links neither cloud nor edge"
	}
	if within(to, "broker") && !within(to, "broker/client") {
		return "a mapper is an MQTT client: of the broker it uses broker/client only"
	}
	if from == "mappers/mqtt" && to == "broker/client" {
		return "" // its devices' protocol
	}
	if isDriver(from) && within(to, "broker", "topics") {
		return "a driver knows its protocol; the SDK knows MQTT, topics and resources"
	}
	return ""
}

// isDriver is whether a package below mappers drives devices: every one but the
// SDK, its test suite and the commands.
func isDriver(path string) bool {
	return strings.HasPrefix(path, "mappers/") && !within(path, "mappers/cmd") && !strings.HasSuffix(path, "test")
}

// forbiddenInTests: tests may use test's helpers and the conformance suites, and
// start what they test; but the two sides of the link stay apart there as well.
func forbiddenInTests(from, to string) string {
	to, ours := strings.CutPrefix(to, module)
	if !ours {
		return ""
	}
	switch {
	case within(from, "cloud") && within(to, "edge"), within(from, "edge") && within(to, "cloud"):
		return "cloud and edge meet on the wire only; a test of both belongs in test"
	case within(from, "topics") && !within(to, "topics", "test"):
		return "the contract imports nothing of ours"
	}
	return ""
}

func TestProgramsLinkOnlyTheirOwn(t *testing.T) {
	links := map[string][]string{
		"edge/cmd/edgecore":         {module + "cloud", module + "mappers", module + "edge/agent", "github.com/godbus", "k8s.io", "sigs.k8s.io/structured-merge-diff", "github.com/google/go-containerregistry", "testing"},
		"edge/cmd/edgeagent":        {module + "cloud", module + "mappers", module + "edge/store", module + "edge/twin", "github.com/mochi-mqtt", "go.etcd.io/bbolt", "k8s.io", "github.com/prometheus", "google.golang.org/protobuf", "testing"},
		"edge/cmd/edgediscovery":    {module + "cloud", module + "mappers", module + "edge/agent", module + "edge/store", module + "edge/twin", "github.com/mochi-mqtt", "go.etcd.io/bbolt", "k8s.io", "testing"},
		"cloud/cmd/cloudhub":        {module + "edge", module + "mappers", "k8s.io/client-go/rest", "k8s.io/client-go/tools", "testing"}, // the queue of cloud/control is client-go's
		"cloud/cmd/edgebus":         {module + "edge", module + "mappers", "k8s.io/client-go", "testing"},
		"mappers/cmd/mapper-modbus": {module + "cloud", module + "edge", "github.com/mochi-mqtt", "go.etcd.io/bbolt", "github.com/prometheus", "google.golang.org/protobuf", "testing"},
		"mappers/drivertest":        {"github.com/stretchr"},
	}
	for _, p := range list(t) {
		for _, dep := range p.Deps {
			if within(dep, links[p.path()]...) {
				t.Errorf("%s links %s", p.path(), dep)
			}
		}
		if len(p.CgoFiles) > 0 {
			t.Errorf("%s uses cgo: programs are built without", p.path())
		}
	}
}

func TestTopLevel(t *testing.T) {
	allowed := []string{"topics", "broker", "cloud", "edge", "mappers", "configs", "scripts", "test", "docs", "bin"}
	files := []string{"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "go.mod", "go.sum"}
	entries, err := os.ReadDir(root(t))
	require.NoError(t, err)
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			require.Contains(t, allowed, e.Name(), "a new top-level directory needs a place in the architecture")
		default:
			require.Contains(t, files, e.Name(), "what is this file doing at the top?")
		}
	}
}

// source calls visit with every Go file of the repository.
func source(t *testing.T, visit func(path string, text []byte)) {
	t.Helper()
	base := root(t)
	require.NoError(t, filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(base, path)
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(name), text)
		return nil
	}))
}

func TestNothingHappensOnImport(t *testing.T) {
	initialiser := regexp.MustCompile(`(?m)^func init\(\)`)
	source(t, func(path string, text []byte) {
		require.False(t, initialiser.Match(text), "%s has an init function: what a program does begins in Run", path)
	})
}

func TestNoSleepingInTests(t *testing.T) {
	sleep := regexp.MustCompile(`(?m)^\s*time\.Sleep\(.*$`)
	source(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, line := range sleep.FindAll(text, -1) {
			require.Contains(t, string(line), "//", "%s sleeps: %s\nawait a condition, or say beside it why none can be", path, bytes.TrimSpace(line))
		}
	})
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string]bool{}
	packages := map[string]string{}
	doc := regexp.MustCompile(`(?m)^(//.*|\*/)\npackage `)
	source(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") && !within(path, "test") {
			return
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		packages[dir] = path
		documented[dir] = documented[dir] || doc.Match(text)
	})
	for dir := range packages {
		require.True(t, documented[dir], "package %s has no comment that says what it is for", dir)
	}
}

func TestNoCatchAllPackages(t *testing.T) {
	vague := regexp.MustCompile(`(?m)^package (common|utils?|types|helpers?|misc|shared|base)$`)
	source(t, func(path string, text []byte) {
		require.False(t, vague.Match(text), "%s: a package is named after what it provides", path)
	})
}

// The rules must be able to fail.
func TestRulesBite(t *testing.T) {
	for _, c := range []struct{ from, to, why string }{
		{"topics", "github.com/rs/zerolog", "leaf"},
		{"topics", module + "topics/resource", "downwards"},
		{"topics/link", "github.com/fxamacker/cbor/v2", ""},
		{"topics/resource", "github.com/fxamacker/cbor/v2", "leaf"},
		{"topics/resource", module + "topics", ""},
		{"topics/link", module + "broker", "nothing of ours"},
		{"broker", module + "cloud/twin", "neither of them"},
		{"broker", module + "configs", "only configs/daemon/mqttserver"},
		{"broker", module + "configs/daemon/backup", "only configs/daemon/mqttserver"},
		{"broker", module + "configs/daemon", ""},
		{"configs/daemon/mqttserver", module + "broker", ""},
		{"configs/daemon/httpserver", module + "broker", "settings"},
		{"configs/daemon/mqttserver", module + "cloud", "settings"},
		{"configs/daemon/boltfile", "go.etcd.io/bbolt", ""},
		{"broker", module + "configs/limits", ""},
		{"broker", "github.com/mochi-mqtt/server/v2", ""},
		{"broker/client", "github.com/mochi-mqtt/server/v2", "mochi"},
		{"broker", "github.com/eclipse/paho.golang/paho", "paho"},
		{"broker/client", "github.com/eclipse/paho.golang/autopaho", ""},
		{"cloud/twin", module + "edge/twin", "on the wire"},
		{"edge/twin", module + "cloud/store", "on the wire"},
		{"cloud/twin", module + "cloud/api", "siblings"},
		{"cloud/twin", module + "cloud/store", ""},
		{"cloud/twin", module + "cloud/store/bolt", "backend"},
		{"cloud/store/bolt", module + "cloud/store", ""},
		{"cloud/api", module + "cloud/objects", ""},
		{"cloud/render", module + "cloud/objects", ""},
		{"cloud/render", module + "cloud/control", ""},
		{"cloud/fleet", module + "cloud/rollout", ""},
		{"cloud/render", module + "cloud/api", "siblings"},
		{"cloud/api", module + "cloud/control", "controls nothing"},
		{"cloud/objects", module + "cloud/control", "no other part"},
		{"cloud/objects", module + "cloud/api", "no other part"},
		{"cloud/objects", module + "cloud/store/bolt", "backend"},
		{"cloud/control", module + "cloud/objects", "no other part"},
		{"cloud", module + "cloud/store/bolt", ""},
		{"cloud/api", module + "cloud", "wiring"},
		{"cloud/cmd/cloudhub", module + "cloud", ""},
		{"cloud/api", module + "mappers", "nobody links"},
		{"cloud/api", "go.etcd.io/bbolt", "bbolt"},
		{"cloud/client", "k8s.io/client-go/rest", "client-go"},
		{"test/kube", "k8s.io/client-go/rest", ""},
		{"broker", "go.etcd.io/bbolt", "store packages"},
		{"edge/api", "github.com/spf13/viper", "viper"},
		{"edge/agent", "google.golang.org/grpc", "gRPC"},
		{"cloud/fleet", "github.com/go-git/go-git/v5", "git"},
		{"cloud/sources", "github.com/go-git/go-git/v5", ""},
		{"edge/agent", module + "edge/agent/files", ""},
		{"edge/agent", module + "edge/upgrade", ""},
		{"edge/upgrade", module + "edge/agent", "siblings"},
		{"edge/agent/files", module + "edge/agent/host", "nor each other"},
		{"edge/agent/host", module + "edge/agent", "nor each other"},
		{"edge/agent/host/apps", module + "edge/agent/host/engine", ""},
		{"edge/agent/host/apps", module + "edge/agent/files", "nor each other"},
		{"edge/agent", module + "edge/store/x", "backend"},
		{"mappers", module + "broker", "broker/client only"},
		{"mappers", module + "broker/client", ""},
		{"mappers/modbus", module + "topics", "a driver"},
		{"mappers/modbus", module + "topics/resource", "a driver"},
		{"mappers/modbus", module + "broker/client", "a driver"},
		{"mappers/mqtt", module + "broker/client", ""},
		{"mappers/mqtt", module + "topics", "a driver"},
		{"mappers/modbus", "github.com/eclipse/paho.golang/paho", "paho"},
		{"mappers/modbus", module + "mappers", ""},
		{"mappers/cmd/mapper-modbus", module + "mappers/modbus", ""},
		{"cloud/twin", module + "test/faults", "imports test"},
		{"cloud/api", module + "test/storetest", "imports test"},
		{"cloud/api", module + "mappers/drivertest", "conformance"},
		{"edge/cmd/edgecore", module + "cloud/cmd/cloudhub", "nobody's library"},
		{"configs", module + "broker", "settings"},
	} {
		got := forbidden(c.from, c.to)
		if c.why == "" {
			require.Empty(t, got, "%s → %s", c.from, c.to)
		} else {
			require.Contains(t, got, c.why, "%s → %s", c.from, c.to)
		}
	}
}
