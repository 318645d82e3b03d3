// SPDX-License-Identifier: Apache-2.0

// Package licenses holds the list that edgebus version --licenses prints against that of go-licenses.
package licenses

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// chosenElsewhere are modules that let one choose a licence: scripts/release says which is chosen, and go-licenses names the other.
func chosenElsewhere() map[string]string {
	return map[string]string{"github.com/eclipse/paho.golang": "EPL-2.0"}
}

const repositoryRoot = "../../.."

func TestGoLicensesFindsTheSameModules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repositoryRoot, "cloud", "cli", "licenses.txt"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		module, licences, _ := strings.Cut(strings.TrimSpace(line), "\t")
		listed[module] = strings.Split(licences, " AND ")
	}
	found := map[string]bool{"std": true} // which go-licenses leaves out
	for _, row := range reportOf(t) {
		path, licence := row[0], row[len(row)-1]
		module := moduleOf(listed, path)
		if module == "" {
			t.Errorf("%s (%s) is linked and not listed", path, licence)
			continue
		}
		found[module] = true
		if !slices.Contains(listed[module], licence) && chosenElsewhere()[module] != licence {
			t.Errorf("%s is listed under %v, and not under %s, which go-licenses finds", path, listed[module], licence)
		}
	}
	for module := range listed {
		if !found[module] {
			t.Errorf("%s is listed, and go-licenses does not find it among what is linked", module)
		}
	}
}

// moduleOf is the module of the list that a package or module is in.
func moduleOf(listed map[string][]string, path string) (module string) {
	for m := range listed {
		if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(module) {
			module = m
		}
	}
	return module
}

// reportOf is what go-licenses says of the programs: a path, an address and a licence in each row.
func reportOf(t *testing.T) (rows [][]string) {
	t.Helper()
	tool, err := exec.Command("go", "tool", "-n", "go-licenses").Output() // builds it
	if err != nil {
		t.Fatal(err)
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(strings.TrimSpace(string(tool)), "report", "--ignore", "github.com/edgebus/edgebus", "./cloud/cmd/...", "./edge/cmd/...", "./mappers/cmd/...")
	cmd.Dir = repositoryRoot
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOROOT="+strings.TrimSpace(string(goroot)))
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("go-licenses: %v: %s", err, &said)
	}
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimSpace(line), ","))
	}
	return rows
}
