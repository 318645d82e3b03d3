// SPDX-License-Identifier: Apache-2.0

// Command manpages DIRECTORY PROGRAM… writes man pages, made of what --help says: one for each command of edgebus (section 1), and one for each
// of the other programs (section 8), which are run for it.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud/cli"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: manpages DIRECTORY PROGRAM…")
		os.Exit(2)
	}
	if err := writePages(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

func writePages(dir string, programs []string) error {
	// Without a directory of the user's own, help shows where the host's settings are, whoever builds.
	if err := errors.Join(os.Setenv("XDG_CONFIG_HOME", "none"), os.MkdirAll(dir, 0o755)); err != nil { //nolint:gosec // G301: pages are for everybody
		return err
	}
	root := cli.NewCommand()
	root.InitDefaultCompletionCmd()
	if err := writeCommandPages(dir, root); err != nil {
		return err
	}
	for _, program := range programs {
		help, err := exec.Command(program, "--help").Output() //nolint:gosec // G204: the program is an argument
		if err != nil {
			return fmt.Errorf("%s --help: %w", program, err)
		}
		name := filepath.Base(program)
		page := manPage{name: name, section: "8", summary: summaryOf(name, string(help)), help: string(help), also: []string{"edgebus(1)"}}
		if err := page.write(dir); err != nil {
			return err
		}
	}
	return nil
}

// writeCommandPages writes the page of a command and those of the commands below it.
func writeCommandPages(dir string, cmd *cobra.Command) error {
	var help bytes.Buffer
	cmd.SetOut(&help)
	if err := cmd.Help(); err != nil {
		return err
	}
	page := manPage{name: pageNameOf(cmd), section: "1", summary: cmd.Short, help: help.String()}
	if cmd.HasParent() {
		page.also = append(page.also, pageNameOf(cmd.Parent())+"(1)")
	}
	for _, below := range cmd.Commands() {
		if !below.IsAvailableCommand() {
			continue
		}
		page.also = append(page.also, pageNameOf(below)+"(1)")
		if err := writeCommandPages(dir, below); err != nil {
			return err
		}
	}
	return page.write(dir)
}

func pageNameOf(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// summaryOf is the first sentence of a program's help, without its name.
func summaryOf(name, help string) string {
	paragraph, _, _ := strings.Cut(help, "\n\n")
	sentence, _, _ := strings.Cut(strings.Join(strings.Fields(paragraph), " ")+" ", ". ")
	return strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(sentence, name+" is ")), ".")
}

// manPage is a page of the manual.
type manPage struct {
	name, section, summary, help string
	also                         []string
}

func (p manPage) write(dir string) error {
	return os.WriteFile(filepath.Join(dir, p.name+"."+p.section), []byte(p.text()), 0o644) //nolint:gosec // G306: pages are for everybody
}

var (
	headingLine = regexp.MustCompile(`^([A-Z][A-Za-z ]*):$`)
	flagLine    = regexp.MustCompile(`^ +((?:-\w, )?--\S+(?: \S+)?) {2,}(\S.*)$`)
)

// text is the page as man(7) wants it. Paragraphs are filled, flags are lists, and what is indented stays as it is.
func (p manPage) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q %q \"\" %q \"Edgebus\"\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n", strings.ToUpper(p.name), p.section, "edgebus "+daemon.Version(), escapeText(p.name), escapeText(p.summary))
	kept := false // within lines that are not filled
	keep := func(now bool) {
		if now != kept {
			b.WriteString(map[bool]string{true: ".nf\n", false: ".fi\n"}[now])
		}
		kept = now
	}
	for line := range strings.Lines(p.help) {
		line = strings.TrimRight(line, " \n")
		flag := flagLine.FindStringSubmatch(line)
		switch heading := headingLine.FindStringSubmatch(line); {
		case strings.HasPrefix(line, "Use \"") && strings.HasSuffix(line, "for more information about a command."): // see also
		case line == "":
			keep(false)
			b.WriteString(".PP\n")
		case heading != nil:
			keep(false)
			fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(heading[1]))
		case flag != nil:
			keep(false)
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", escapeText(flag[1]), escapeText(flag[2]))
		default:
			keep(strings.HasPrefix(line, " "))
			fmt.Fprintln(&b, escapeText(line))
		}
	}
	keep(false)
	if len(p.also) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", escapeText(strings.Join(p.also, ", ")))
	}
	return b.String()
}

// escapeText has roff print a line as it is, without the typographic quotes and accents that it makes of these characters: commands are copied from pages.
func escapeText(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}
