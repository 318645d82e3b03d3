// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli"
)

func TestHelpBecomesAPage(t *testing.T) {
	page := manPage{name: "x", section: "8", summary: "does -x", also: []string{"y(1)"}, help: `x does it,
.as told in C:\temp, ~ and ^.

Usage:
  x [flags]

Flags:
  -o, --output string   'table' or *json*
      --once            print once

Use "x [command] --help" for more information about a command.
`}
	_, text, found := strings.Cut(page.text(), "\n")
	require.True(t, found)
	require.Equal(t, `.SH NAME
x \- does \-x
.SH DESCRIPTION
x does it,
\&.as told in C:\etemp, \(ti and \(ha.
.PP
.SH USAGE
.nf
  x [flags]
.fi
.PP
.SH FLAGS
.TP
\fB\-o, \-\-output string\fR
\(aqtable\(aq or *json*
.TP
\fB\-\-once\fR
print once
.PP
.SH SEE ALSO
y(1)
`, text)
}

// Each command has a page, and so has a program that says what it is; nothing in them is from the home of who makes them.
func TestEachCommandAndProgramHasAPage(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	program := filepath.Join(dir, "hub")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho 'hub is the hub,\nof all. It runs.'\n"), 0o700))
	require.NoError(t, writePages(filepath.Join(dir, "man"), []string{program}))
	text, err := os.ReadFile(filepath.Join(dir, "man", "hub.8"))
	require.NoError(t, err)
	require.Contains(t, string(text), "hub \\- the hub, of all\n")
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		text, err := os.ReadFile(filepath.Join(dir, "man", pageNameOf(cmd)+".1"))
		require.NoError(t, err)
		require.Contains(t, string(text), "\n.SH USAGE\n", cmd.Name())
		require.NotContains(t, string(text), home)
		for _, below := range cmd.Commands() {
			visit(below)
		}
	}
	visit(cli.NewCommand())
	require.ErrorContains(t, writePages(dir, []string{filepath.Join(dir, "none")}), "none --help: ")
}
