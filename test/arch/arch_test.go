// SPDX-License-Identifier: Apache-2.0

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

const modulePath = "github.com/edgebus/edgebus/"

// goPackage is what the go command knows about a package. Dir and import path are
// relative to the repository's root.
type goPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
	CgoFiles     []string
	Deps         []string
}

func (p goPackage) path() string { return strings.TrimPrefix(p.ImportPath, modulePath) }

func repositoryRoot(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// listPackages asks the go command about the repository's packages.
func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags", "testprogram", "-json=ImportPath,Imports,TestImports,XTestImports,GoFiles,CgoFiles,Deps", "./...")
	cmd.Dir = repositoryRoot(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var all []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// isBelow is whether path is dir or below it.
func isBelow(path string, dirs ...string) bool {
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
	for _, p := range listPackages(t) {
		for _, imported := range p.Imports {
			if why := importRule(p.path(), imported); why != "" {
				t.Errorf("%s imports %s: %s", p.path(), strings.TrimPrefix(imported, modulePath), why)
			}
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			if why := testsRule(p.path(), imported); why != "" {
				t.Errorf("tests of %s import %s: %s", p.path(), strings.TrimPrefix(imported, modulePath), why)
			}
		}
	}
}

// importRule is the rule that from breaks by importing to, or nothing.
func importRule(from, to string) string {
	if why := libraryRule(from, to); why != "" {
		return why
	}
	if !strings.HasPrefix(to, modulePath) {
		return ""
	}
	to = strings.TrimPrefix(to, modulePath)
	if isBelow(to, "test") && !isBelow(from, "test") {
		return "nothing but tests imports test"
	}
	if suite := filepath.Base(to); strings.HasSuffix(suite, "test") && !isBelow(from, "test") && !strings.HasSuffix(from, "test") {
		return "a conformance suite is for tests, not for programs"
	}
	if strings.Contains(to, "/cmd/") {
		return "a command is nobody's library; put what is shared into the package that it starts"
	}
	switch role, _, _ := strings.Cut(from, "/"); role {
	case "topics":
		return topicsRule(from, to)
	case "broker":
		return brokerRule(from, to)
	case "cloud", "edge":
		return roleRule(role, from, to)
	case "mappers":
		return mappersRule(from, to)
	case "configs":
		if !isBelow(to, "topics", "configs") {
			return "configs knows settings, not those who use them"
		}
	}
	return ""
}

// formats are the packages of the contract that read a format with a library.
var formats = map[string]string{
	"topics/link":     "github.com/fxamacker/cbor",
	"topics/password": "golang.org/x/crypto/argon2",
	"topics/schedule": "github.com/robfig/cron",
}

// libraryRule says where the libraries of others may appear.
func libraryRule(from, to string) string {
	if isBelow(from, "topics") && !isStandard(to) && !strings.HasPrefix(to, modulePath) && (formats[from] == "" || !isBelow(to, formats[from])) {
		return "the contract is a leaf: the standard library only, and the library of a format where it is read"
	}
	for _, rule := range []struct {
		library string
		homes   []string
		why     string
	}{
		{"github.com/mochi-mqtt", []string{"broker"}, "mochi appears only in broker, and its types don't leave it"},
		{"github.com/eclipse/paho.golang", []string{"broker/client"}, "paho appears only in broker/client"},
		{"go.etcd.io/bbolt", []string{"edge/store", "broker/daemon/boltfile"}, "bbolt appears only in the edge's store, and where it opens it"},
		{"github.com/spf13/viper", []string{"configs"}, "viper appears only in configs"},
		{"github.com/godbus/dbus", []string{"edge/agent/host"}, "D-Bus appears only in edge/agent/host"},
		{"google.golang.org/grpc", []string{"edge/discovery", "mappers/dmi", "broker/daemon/rawgrpc"}, "gRPC appears only where another project's protocol is spoken, and below it"},
		{"github.com/go-git/go-git", []string{"cloud/sources"}, "git and registries appear only in cloud/sources"},
		{"github.com/google/go-containerregistry", []string{"cloud/sources"}, "git and registries appear only in cloud/sources"},
		{"k8s.io/client-go", []string{"cloud/control", "cloud/cli/access", "cloud/cli/objects"}, "client-go is for tests: what is linked is cloud/client, the queue in cloud/control, what reads kubeconfigs in cloud/cli/access, and jsonpath in cloud/cli/objects"},
		{"github.com/stretchr/testify", nil, "testify is for tests"},
		{"pgregory.net/rapid", nil, "rapid is for tests"},
		{"go.bug.st/serial", []string{"mappers/modbus"}, "a protocol's library belongs to its driver"},
		{"text/template", []string{"scripts"}, "a program that can run templates keeps every method of every type, a quarter of its size: cloud/templates has an evaluator without"},
		{"html/template", nil, "a program that can run templates keeps every method of every type, a quarter of its size"},
		{"github.com/gopcua/opcua", nil, "gopcua is for tests: it must not be pointed at servers that are not trusted"},
	} {
		inside := isBelow(from, rule.homes...) || to == "text/template/parse"
		if rule.library == "github.com/mochi-mqtt" && from != "broker" {
			inside = isBelow(from, "broker/session") // the packet codec
		}
		if isBelow(to, rule.library) && !inside && !isBelow(from, "test") && !strings.HasSuffix(from, "test") {
			return rule.why
		}
	}
	return ""
}

func topicsRule(from, to string) string {
	if !isBelow(to, "topics") {
		return "the contract imports nothing of ours"
	}
	if from == "topics" || (from == "topics/resource" && isBelow(to, "topics/link")) || (from == "topics/link" && isBelow(to, "topics/resource")) {
		return "topics, topics/resource and topics/link import each other downwards only"
	}
	return ""
}

func brokerRule(from, to string) string {
	if isBelow(to, "cloud", "edge", "mappers") {
		return "the broker serves cloud and edge, and knows neither of them"
	}
	if isBelow(to, "configs") && from != "broker/views/settings" { // what both programs make of the same settings, once
		return "the broker has options, and what processes have in common has them: neither knows settings"
	}
	if isBelow(from, "broker/daemon") && !isBelow(to, "topics", "broker/daemon") {
		return "what processes have in common knows no broker"
	}
	return ""
}

// roleRule keeps cloud and edge apart, and their parts from each other:
// they state what they need, and cloud.go and edge.go connect them.
func roleRule(role, from, to string) string {
	other := map[string]string{"cloud": "edge", "edge": "cloud"}[role]
	if isBelow(to, other) {
		return "cloud and edge meet on the wire only"
	}
	if handler, ok := strings.CutPrefix(from, "edge/discovery/handlers/"); ok && to == "mappers/"+handler+"/wire" {
		return "" // the codec of a protocol is one, for its mapper and its discovery handler
	}
	if isBelow(to, "mappers") {
		return "mappers are MQTT clients: nobody links them, but a discovery handler the codec of its protocol"
	}
	if from == role || isBelow(from, role+"/cmd") || !isBelow(to, role) {
		return ""
	}
	if from == "cloud/clusterhub" && to != role || from == "cloud/hubdata" && to != role && to != "cloud/clusterhub" {
		return "" // they connect parts, as cloud.go does, and no part knows them
	}
	part := strings.Split(from, "/")[1]
	switch {
	case isBelow(from, "cloud/cli") && isBelow(to, "cloud/cli"):
		return commandsRule(from, to)
	case isBelow(from, "edge/agent") && from != "edge/agent" && isBelow(to, "edge/agent") && !isBelow(to, strings.Join(strings.Split(from, "/")[:3], "/")):
		return "edge/agent wires its parts, which know neither it nor each other"
	case isBelow(to, role+"/"+part), from == "edge/agent" && to == "edge/upgrade": // a part of the program edgeagent
		return ""
	case isBelow(from, "cloud/cli"):
		return commandsRule(from, to)
	case to == role:
		return "the wiring knows the parts, not the other way round"
	case to == role+"/store":
		return "" // its types, and its readers, writers and watchers
	case isBelow(to, role+"/store"):
		return "only " + role + ".go chooses a store's backend"
	case isBelow(from, "cloud/objects", "cloud/control"):
		return "the object layer and the controllers' runtime know the store, and no other part"
	case from == "cloud/api" && to == "cloud/control":
		return "the API serves objects, and controls nothing"
	case isBelow(to, "cloud/objects", "cloud/control", "cloud/rollout", "cloud/templates", "cloud/images"):
		return ""
	default:
		return "parts of a role don't import their siblings; state an interface, and " + role + ".go connects them"
	}
}

// commandsRule keeps the packages of commands apart from the hub, and from each other.
func commandsRule(from, to string) string {
	commands := []string{"cloud/cli/objects", "cloud/cli/devices", "cloud/cli/nodes", "cloud/cli/doctor", "cloud/cli/hub", "cloud/cli/demo", "cloud/cli/newmapper"}
	switch {
	case !isBelow(to, "cloud/cli", "cloud/client"):
		return "the command line is a client: of the hub it knows cloud/client"
	case from != "cloud/cli" && to == "cloud/cli", from != "cloud/cli" && from != to && slices.Contains(commands, to):
		return "only cloud/cli knows all commands; what they share is in a package of its own"
	}
	return ""
}

func mappersRule(from, to string) string {
	if isCodec(from) {
		if !isCodec(to) {
			return "a codec is a leaf: it imports nothing of ours but another codec"
		}
		return ""
	}
	if isBelow(to, "cloud", "edge") {
		return "a mapper is an MQTT client: it links neither cloud nor edge"
	}
	if isBelow(to, "broker") && !isBelow(to, "broker/client", "broker/daemon") {
		return "a mapper is an MQTT client: of the broker it uses broker/client only"
	}
	if from == "mappers/mqtt" && (to == "broker/client" || to == "topics/sparkplug") {
		return "" // its devices' protocols
	}
	if from == "mappers/dmi" && isBelow(to, "broker/daemon", "topics/dialect", "topics/resource") {
		return "" // the server of another project's mappers: Devices as that project writes them
	}
	if isDriver(from) && isBelow(to, "broker", "topics") {
		return "a driver knows its protocol; the SDK knows MQTT, topics and resources"
	}
	return ""
}

// isDriver is whether a package below mappers drives devices: every one but the
// SDK, its test suite and the commands.
func isDriver(path string) bool {
	return strings.HasPrefix(path, "mappers/") && !isBelow(path, "mappers/cmd") && !strings.HasSuffix(path, "test")
}

// isCodec is whether a package below mappers is the codec of a protocol, which discovery handlers may use, or what codecs have in common.
func isCodec(path string) bool {
	return strings.HasPrefix(path, "mappers/") && filepath.Base(path) == "wire"
}

// testsRule: tests may use test's helpers and the conformance suites, and
// start what they test; but the two sides of the link stay apart there as well.
func testsRule(from, to string) string {
	to, ours := strings.CutPrefix(to, modulePath)
	if !ours {
		return ""
	}
	switch {
	case isBelow(from, "cloud") && isBelow(to, "edge"), isBelow(from, "edge") && isBelow(to, "cloud"):
		return "cloud and edge meet on the wire only; a test of both belongs in test"
	case isBelow(from, "topics") && !isBelow(to, "topics", "test"):
		return "the contract imports nothing of ours"
	case isBelow(from, "broker") && isBelow(to, "configs"), isBelow(from, "configs") && isBelow(to, "broker"):
		return "settings and the broker know nothing of each other; a test of both belongs in test"
	}
	return ""
}

func TestProgramsLinkOnlyTheirOwn(t *testing.T) {
	links := map[string][]string{
		"edge/cmd/edgecore":         {modulePath + "cloud", modulePath + "mappers", modulePath + "edge/agent", "github.com/godbus", "k8s.io", "sigs.k8s.io/structured-merge-diff", "github.com/google/go-containerregistry", "testing"},
		"edge/cmd/edgeagent":        {modulePath + "cloud", modulePath + "mappers", modulePath + "edge/store", modulePath + "edge/twin", "github.com/mochi-mqtt", "go.etcd.io/bbolt", "k8s.io", "github.com/prometheus", "google.golang.org/protobuf", "testing"},
		"edge/cmd/edgediscovery":    {modulePath + "cloud", modulePath + "mappers", modulePath + "edge/agent", modulePath + "edge/store", modulePath + "edge/twin", "github.com/mochi-mqtt", "go.etcd.io/bbolt", "k8s.io", "testing"},
		"cloud/cmd/cloudhub":        {modulePath + "edge", modulePath + "mappers", "go.etcd.io/bbolt", "k8s.io/client-go/rest", "k8s.io/client-go/tools", "testing"}, // the queue of cloud/control is client-go's
		"cloud/cmd/edgebus":         {modulePath + "edge", modulePath + "mappers", modulePath + "cloud/store", "k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "testing"},
		"mappers/cmd/mapper-modbus": {modulePath + "cloud", modulePath + "edge", "github.com/mochi-mqtt", "go.etcd.io/bbolt", "github.com/prometheus", "google.golang.org/protobuf", "testing"},
		"mappers/drivertest":        {"github.com/stretchr"},
	}
	for _, p := range listPackages(t) {
		for _, dep := range p.Deps {
			if isBelow(dep, links[p.path()]...) && !(strings.HasPrefix(p.path(), "edge/cmd/") && isCodec(strings.TrimPrefix(dep, modulePath))) {
				t.Errorf("%s links %s", p.path(), dep)
			}
		}
		if len(p.CgoFiles) > 0 {
			t.Errorf("%s uses cgo: programs are built without", p.path())
		}
	}
}

// protocols are the packages of each protocol: ours, and the libraries that only its own programs are linked with.
var protocols = map[string][]string{
	"bacnet": {modulePath + "mappers/bacnet"}, "http": {modulePath + "mappers/http"}, "modbus": {modulePath + "mappers/modbus", "go.bug.st/serial"},
	"mqtt": {modulePath + "mappers/mqtt"}, "opcua": {modulePath + "mappers/opcua"}, "snmp": {modulePath + "mappers/snmp", "github.com/gosnmp"},
	"virtual": {modulePath + "mappers/virtual"}, "dmi": {modulePath + "mappers/dmi"}, "": {"github.com/gopcua"},
}

func TestNoProgramHasTheProtocolOfAnother(t *testing.T) {
	programs := 0
	for _, p := range listPackages(t) {
		role, name := filepath.Split(p.path())
		if !strings.HasSuffix(role, "/cmd/") {
			continue
		}
		programs++
		for protocol, packages := range protocols {
			if name == "mapper-"+protocol {
				continue
			}
			for _, dep := range p.Deps {
				finds := (name == "edgediscovery" || name == "discovery-"+protocol) && dep == modulePath+"mappers/"+protocol+"/wire"
				if isBelow(dep, packages...) && !finds {
					t.Errorf("%s links %s, which is for %s", p.path(), dep, protocol)
				}
			}
		}
		if grpc := name == "edgediscovery" || strings.HasPrefix(name, "discovery-") || name == "mapper-dmi"; !grpc && slices.ContainsFunc(p.Deps, func(dep string) bool { return isBelow(dep, "google.golang.org/grpc") }) && role != "cloud/cmd/" {
			t.Errorf("%s links gRPC", p.path())
		}
	}
	require.Greater(t, programs, 15)
}

func TestNoCommandHasATemplate(t *testing.T) {
	visitSources(t, func(path string, text []byte) {
		for _, name := range []string{"SetVersion" + "Template(", "SetUsage" + "Template(", "SetHelp" + "Template("} {
			if strings.Contains(string(text), name) {
				t.Errorf("%s: %s links templates, and with them every method of every type: see daemon.PrintVersion", path, name)
			}
		}
	})
}

func TestTopLevel(t *testing.T) {
	allowed := []string{"topics", "broker", "cloud", "edge", "mappers", "configs", "scripts", "test", "docs", "bin"}
	files := []string{"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "go.mod", "go.sum"}
	entries, err := os.ReadDir(repositoryRoot(t))
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

// visitSources calls visit with every Go file of the repository.
func visitSources(t *testing.T, visit func(path string, text []byte)) {
	t.Helper()
	base := repositoryRoot(t)
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
	visitSources(t, func(path string, text []byte) {
		require.False(t, initialiser.Match(text), "%s has an init function: what a program does begins in Run", path)
	})
}

func TestNoSleepingInTests(t *testing.T) {
	sleep := regexp.MustCompile(`(?m)^\s*time\.Sleep\(.*$`)
	visitSources(t, func(path string, text []byte) {
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
	visitSources(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") && !isBelow(path, "test") {
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
	visitSources(t, func(path string, text []byte) {
		require.False(t, vague.Match(text), "%s: a package is named after what it provides", path)
	})
}

// The rules must be able to fail.
func TestRulesBite(t *testing.T) {
	for _, c := range []struct{ from, to, why string }{
		{"topics", "github.com/rs/zerolog", "leaf"},
		{"topics", modulePath + "topics/resource", "downwards"},
		{"topics/link", "github.com/fxamacker/cbor/v2", ""},
		{"topics/resource", "github.com/fxamacker/cbor/v2", "leaf"},
		{"topics/resource", modulePath + "topics", ""},
		{"topics/link", modulePath + "broker", "nothing of ours"},
		{"broker", modulePath + "cloud/twin", "neither of them"},
		{"topics/password", "golang.org/x/crypto/argon2", ""},
		{"topics/password", "github.com/rs/zerolog", "leaf"},
		{"broker", modulePath + "configs", "knows settings"},
		{"broker/mqttserver", modulePath + "configs", "knows settings"},
		{"broker/views/runner", modulePath + "configs", "knows settings"},
		{"broker/views/settings", modulePath + "configs", ""},
		{"broker/daemon/httpserver", modulePath + "configs", "knows settings"},
		{"configs", modulePath + "broker/daemon", "settings"},
		{"configs", modulePath + "topics/acl", ""},
		{"mappers/cmd", modulePath + "broker/daemon", ""},
		{"broker", modulePath + "broker/daemon", ""},
		{"broker/mqttserver", modulePath + "broker", ""},
		{"broker/daemon/httpserver", modulePath + "broker", "knows no broker"},
		{"broker/daemon/httpserver", modulePath + "broker/audit", "knows no broker"},
		{"broker/daemon/httpserver", modulePath + "topics/limits", ""},
		{"broker/mqttserver", modulePath + "cloud", "neither of them"},
		{"broker/daemon/boltfile", "go.etcd.io/bbolt", ""},
		{"broker", modulePath + "topics/limits", ""},
		{"broker", "github.com/mochi-mqtt/server/v2", ""},
		{"broker/client", "github.com/mochi-mqtt/server/v2", "mochi"},
		{"broker", "github.com/eclipse/paho.golang/paho", "paho"},
		{"broker/client", "github.com/eclipse/paho.golang/autopaho", ""},
		{"cloud/twin", modulePath + "edge/twin", "on the wire"},
		{"edge/twin", modulePath + "cloud/store", "on the wire"},
		{"cloud/twin", modulePath + "cloud/api", "siblings"},
		{"cloud/twin", modulePath + "cloud/store", ""},
		{"cloud/twin", modulePath + "cloud/store/disk", "backend"},
		{"cloud/store/disk", modulePath + "cloud/store", ""},
		{"cloud/api", modulePath + "cloud/objects", ""},
		{"cloud/render", modulePath + "cloud/objects", ""},
		{"cloud/render", modulePath + "cloud/control", ""},
		{"cloud/fleet", modulePath + "cloud/rollout", ""},
		{"cloud/render", modulePath + "cloud/api", "siblings"},
		{"cloud/api", modulePath + "cloud/control", "controls nothing"},
		{"cloud/objects", modulePath + "cloud/control", "no other part"},
		{"cloud/objects", modulePath + "cloud/api", "no other part"},
		{"cloud/objects", modulePath + "cloud/store/disk", "backend"},
		{"cloud/control", modulePath + "cloud/objects", "no other part"},
		{"cloud", modulePath + "cloud/store/disk", ""},
		{"cloud/api", modulePath + "cloud", "wiring"},
		{"cloud/hubdata", modulePath + "cloud/store/disk", ""},
		{"cloud/hubdata", modulePath + "cloud", "wiring"},
		{"cloud/enroll", modulePath + "cloud/hubdata", "siblings"},
		{"cloud/clusterhub", modulePath + "cloud/hubdata", ""},
		{"cloud/clusterhub", modulePath + "cloud", "wiring"},
		{"cloud/hubdata", modulePath + "cloud/clusterhub", "siblings"},
		{"cloud/cmd/cloudhub", modulePath + "cloud", ""},
		{"cloud/api", modulePath + "mappers", "nobody links"},
		{"cloud/api", "go.etcd.io/bbolt", "bbolt"},
		{"cloud/client", "k8s.io/client-go/rest", "client-go"},
		{"cloud/cmd/edgebus", modulePath + "cloud/cli", ""},
		{"cloud/cli", modulePath + "cloud/cli/objects", ""},
		{"cloud/cli/objects", modulePath + "cloud/cli/access", ""},
		{"cloud/cli/objects", modulePath + "cloud/cli", "only cloud/cli knows"},
		{"cloud/cli/objects", modulePath + "cloud/cli/devices", "only cloud/cli knows"},
		{"cloud/cli/access", modulePath + "cloud/client", ""},
		{"cloud/cli/access", modulePath + "cloud/objects", "is a client"},
		{"test/kube", "k8s.io/client-go/rest", ""},
		{"broker", "go.etcd.io/bbolt", "edge's store"},
		{"edge/api", "github.com/spf13/viper", "viper"},
		{"edge/agent", "google.golang.org/grpc", "gRPC"},
		{"cloud/fleet", "github.com/go-git/go-git/v5", "git"},
		{"cloud/sources", "github.com/go-git/go-git/v5", ""},
		{"edge/agent", modulePath + "edge/agent/files", ""},
		{"edge/agent", modulePath + "edge/upgrade", ""},
		{"edge/upgrade", modulePath + "edge/agent", "siblings"},
		{"edge/agent/files", modulePath + "edge/agent/host", "nor each other"},
		{"edge/agent/host", modulePath + "edge/agent", "nor each other"},
		{"edge/agent/host/apps", modulePath + "edge/agent/host/engine", ""},
		{"edge/agent/host/apps", modulePath + "edge/agent/files", "nor each other"},
		{"edge/agent", modulePath + "edge/store/x", "backend"},
		{"mappers", modulePath + "broker", "broker/client only"},
		{"mappers", modulePath + "broker/client", ""},
		{"mappers/modbus", modulePath + "topics", "a driver"},
		{"mappers/modbus", modulePath + "topics/resource", "a driver"},
		{"mappers/modbus", modulePath + "broker/client", "a driver"},
		{"mappers/mqtt", modulePath + "broker/client", ""},
		{"mappers/mqtt", modulePath + "topics", "a driver"},
		{"mappers/modbus", "github.com/eclipse/paho.golang/paho", "paho"},
		{"mappers/modbus", modulePath + "mappers", ""},
		{"edge/discovery/handlers/bacnet", modulePath + "mappers/bacnet/wire", ""},
		{"edge/discovery/handlers/bacnet", modulePath + "mappers/bacnet", "nobody links"},
		{"edge/discovery/handlers/modbus", modulePath + "mappers/bacnet/wire", "nobody links"},
		{"edge/discovery", modulePath + "mappers/bacnet/wire", "nobody links"},
		{"mappers/bacnet/wire", modulePath + "mappers", "a leaf"},
		{"mappers/bacnet/wire", modulePath + "topics", "a leaf"},
		{"mappers/bacnet/wire", modulePath + "mappers/wire", ""},
		{"mappers/cmd/mapper-modbus", modulePath + "mappers/modbus", ""},
		{"cloud/twin", modulePath + "test/faults", "imports test"},
		{"cloud/api", modulePath + "test/storetest", "imports test"},
		{"cloud/api", modulePath + "mappers/drivertest", "conformance"},
		{"edge/cmd/edgecore", modulePath + "cloud/cmd/cloudhub", "nobody's library"},
		{"configs", modulePath + "broker", "settings"},
	} {
		got := importRule(c.from, c.to)
		if c.why == "" {
			require.Empty(t, got, "%s → %s", c.from, c.to)
		} else {
			require.Contains(t, got, c.why, "%s → %s", c.from, c.to)
		}
	}
}
