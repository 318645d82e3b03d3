// SPDX-License-Identifier: Apache-2.0

// Command cosign has what the test of a release needs of cosign: it makes keys and verifies signatures of blobs by cosign's own packages, with
// the flags of cosign's commands. The whole program has three times as many packages, for the key stores and policies of others.
package main

import (
	"context"
	"crypto"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "generate-key-pair":
		return generateKeyPair()
	case len(args) > 1 && args[0] == "verify-blob":
		return verifyBlob(args[1:])
	}
	return errors.New("usage: cosign generate-key-pair | cosign verify-blob --key FILE --signature FILE --insecure-ignore-tlog=true BLOB")
}

func generateKeyPair() error {
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte(os.Getenv("COSIGN_PASSWORD")), nil })
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile("cosign.key", keys.PrivateBytes, 0o600), os.WriteFile("cosign.pub", keys.PublicBytes, 0o644))
}

func verifyBlob(args []string) error {
	flags := flag.NewFlagSet("verify-blob", flag.ContinueOnError)
	key, sig := flags.String("key", "", "the public key's file"), flags.String("signature", "", "the signature's file")
	noLog := flags.Bool("insecure-ignore-tlog", false, "the signature is in no public log")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*key)
	if err != nil {
		return err
	}
	signed, err := os.ReadFile(*sig)
	if err != nil {
		return err
	}
	blob, err := os.ReadFile(flags.Arg(0))
	if err != nil {
		return err
	}
	public, err := cryptoutils.UnmarshalPEMToPublicKey(text)
	if err != nil {
		return err
	}
	verifier, err := signature.LoadVerifier(public, crypto.SHA256)
	if err != nil {
		return err
	}
	of, err := static.NewSignature(blob, string(signed)) // both have it in base64
	if err != nil {
		return err
	}
	_, err = cosign.VerifyBlobSignature(context.Background(), of, &cosign.CheckOpts{SigVerifier: verifier, IgnoreTlog: *noLog})
	return err
}
