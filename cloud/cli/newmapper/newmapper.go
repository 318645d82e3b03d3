// SPDX-License-Identifier: Apache-2.0

package newmapper

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/topics"
)

//go:embed *.tmpl
var mapperFiles embed.FS

// mapperScaffold holds the values for the files of a new mapper.
type mapperScaffold struct {
	Name, Program, Module, Go string
	Version                   string // of this module that is required; empty: go mod tidy finds the latest
	Source                    string // the directory that stands in its place; empty: none
}

// New is edgebus new-mapper.
func New() *cobra.Command {
	var module, dir, source string
	cmd := &cobra.Command{
		Use:   "new-mapper NAME",
		Short: "Write a new mapper in Go, to be completed",
		Long: `Write a Go module with a mapper for devices of the protocol NAME: a program with flags,
configuration and TLS, a driver for a simple protocol, which you replace by your own, and
its test. It builds and its test passes as it is. docs/mappers.md says how to go on.`,
		Example: "  edgebus new-mapper knx\n  cd mapper-knx && go mod tidy && go test ./... && go build",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := mapperScaffold{Name: args[0], Program: "mapper-" + args[0], Module: module, Go: "1.26", Source: source}
			if !topics.ValidName(m.Name) || strings.Contains(m.Name, ".") {
				return exitcode.Errorf(exitcode.Misused, "%q is no name of a mapper: it has letters a–z, digits and '-' in between", m.Name)
			}
			if m.Module == "" {
				m.Module = m.Program
			}
			if dir == "" {
				dir = m.Program
			}
			if v := daemon.Version(); strings.HasPrefix(v, "v") && source == "" {
				m.Version = v
			}
			if source != "" {
				m.Version = "v0.0.0"
				var err error
				if m.Source, err = filepath.Abs(source); err != nil {
					return err
				}
			}
			return m.write(dir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&module, "module", "", "path of the Go module (default mapper-NAME)")
	cmd.Flags().StringVar(&dir, "dir", "", "directory to write it to, which must not exist (default mapper-NAME)")
	cmd.Flags().StringVar(&source, "edgebus", "", "directory of Edgebus' source to build it with, instead of a published version")
	return cmd
}

// goMod is the file go.mod.
func (m mapperScaffold) goMod() string {
	text := fmt.Sprintf("module %s\n\ngo %s\n", m.Module, m.Go)
	if m.Version != "" {
		text += "\nrequire github.com/edgebus/edgebus " + m.Version + "\n"
	}
	if m.Source != "" {
		text += "\nreplace github.com/edgebus/edgebus => " + m.Source + "\n"
	}
	return text
}

// write makes the directory and the files in it.
func (m mapperScaffold) write(dir string, out io.Writer) error {
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) { //nolint:gosec // G301: source code
		return exitcode.Errorf(exitcode.Misused, "%s exists: choose another directory with --dir", dir)
	} else if err != nil {
		return err
	}
	files := map[string]string{"go.mod": m.goMod()}
	// A library's templates would make edgebus larger by a quarter: the linker keeps every method of every type then.
	values := strings.NewReplacer("{{.Name}}", m.Name, "{{.Program}}", m.Program)
	for _, name := range []string{"driver.go", "driver_test.go", "main.go"} {
		text, err := mapperFiles.ReadFile(name + ".tmpl")
		if err != nil {
			return err
		}
		files[name] = values.Replace(string(text))
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // G306: source code
			return err
		}
	}
	if m.Source != "" { // the same versions that edgebus was built with
		sums, err := os.ReadFile(filepath.Join(m.Source, "go.sum"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644) //nolint:gosec // G306: source code
		}
		if err != nil {
			return fmt.Errorf("--edgebus: %w", err)
		}
	}
	_, err := fmt.Fprintf(out, "%s is written: cd %[1]s && go mod tidy && go test ./... && go build\n", dir)
	return err
}
