// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"strconv"

	"github.com/spf13/pflag"
)

// dryRunFlag is the flag --dry-run. It takes kubectl's words as well: it is the hub that checks, whichever of them is said.
type dryRunFlag bool

func addDryRun(f *pflag.FlagSet, value *bool, usage string) {
	f.VarPF((*dryRunFlag)(value), "dry-run", "", usage).NoOptDefVal = "true"
}

func (d *dryRunFlag) Set(text string) error {
	switch text {
	case "server", "client":
		text = "true"
	case "none":
		text = "false"
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("must be true or false, or kubectl's server, client or none")
	}
	*d = dryRunFlag(on)
	return nil
}

func (d *dryRunFlag) String() string { return strconv.FormatBool(bool(*d)) }
func (d *dryRunFlag) Type() string   { return "bool" }
