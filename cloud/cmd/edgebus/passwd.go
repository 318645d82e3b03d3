package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/configs/password"
)

func newPasswd() *cobra.Command {
	return &cobra.Command{
		Use:   "passwd",
		Short: "Make the hash of a password, for auth.users",
		Long: `Ask for a password, and print the hash of it that belongs into auth.users of hub.yaml or core.yaml
as passwordHash. Without a terminal the password is the first line of standard input.
Hashes of mosquitto_passwd are taken as well.`,
		Example: "  edgebus passwd\n  pwgen 20 1 | tee ann.password | edgebus passwd",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			secret, err := newPassword(cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), password.Make(secret))
			return err
		},
	}
}

// newPassword reads a password: from a terminal twice, and unseen.
func newPassword(in io.Reader, prompts io.Writer) (secret []byte, err error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		secret = []byte(strings.TrimRight(line, "\r\n"))
	} else {
		var twice [2][]byte
		for i, prompt := range []string{"Password: ", "Once more: "} {
			fmt.Fprint(prompts, prompt)
			twice[i], err = term.ReadPassword(int(file.Fd()))
			fmt.Fprintln(prompts)
			if err != nil {
				return nil, err
			}
		}
		if string(twice[0]) != string(twice[1]) {
			return nil, withCode(misused, "the two passwords are not the same")
		}
		secret = twice[0]
	}
	if len(secret) == 0 {
		return nil, withCode(misused, "no password was given: type one, or write it to standard input")
	}
	return secret, nil
}
