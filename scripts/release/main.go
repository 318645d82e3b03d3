// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// commands are what can be made.
var commands = map[string]func(*releaseBuild) error{
	"packages": makePackages,
	"images":   makeImages,
	"notices":  makeNotices,
	"release":  makeRelease,
}

func run(args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return fmt.Errorf("usage: release %s [flags]", strings.Join(commandNames(), "|"))
	}
	b := &releaseBuild{}
	var arches string
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&b.root, "root", "../..", "directory of the sources")
	flags.StringVar(&b.out, "out", "", "directory that gets what is made")
	flags.StringVar(&b.version, "version", "", "version, such as v0.9.0")
	flags.StringVar(&arches, "arch", "amd64,arm64,arm", "architectures, as Go names them")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	b.arches = strings.Split(arches, ",")
	for _, path := range []*string{&b.root, &b.out} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	if err := b.prepare(); err != nil {
		return err
	}
	return commands[args[0]](b)
}

func commandNames() (names []string) {
	for name := range commands {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
