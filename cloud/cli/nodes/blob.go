// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// blobInfo is a blob as the hub lists it.
type blobInfo struct {
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"`
	LastPut time.Time `json:"lastPut"`
	File    string    `json:"file,omitempty"` // that was pushed
}

const (
	blobsPath = "/blobs"
	pushTries = 5
)

func newBlob() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "blob",
		Short: "Push, list, get and remove contents that nodes' specs refer to",
		Long: `Push, list, get and remove blobs: contents that the hub stores once, by their SHA-256, and that nodes' specs refer to by digest
and size. A node downloads those that its spec refers to.

This needs an operator of all nodes.`,
		Example: "  edgebus blob push model.tar.gz\n  edgebus blob list",
	}
	cmd.AddCommand(newBlobPush(), newBlobList(), newBlobGet(), newBlobRemove())
	return cmd
}

func newBlobPush() *cobra.Command {
	var o access.Hub
	var output string
	cmd := &cobra.Command{
		Use:   "push FILE...",
		Short: "Store files in the hub, and print their digests",
		Long: `Store files in the hub, and print the digest and size of each, as a node's spec refers to it. What the hub has already is not
sent again, so a push that was interrupted can be repeated. When the connection is lost, the file is sent again, up to five times.

A blob that no spec refers to is removed after some time (limits.blobs.age, 24h by default).

` + exitcode.Help,
		Example: "  edgebus blob push model.tar.gz certs/*.pem",
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		var pushed []blobInfo
		for _, name := range files {
			b, err := pushBlob(cmd, o.Client, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			pushed = append(pushed, b)
			if output != "json" {
				fmt.Fprintf(cmd.OutOrStdout(), "%s  %d  %s\n", b.Digest, b.Size, name)
			}
		}
		if output == "json" {
			return printer.JSON(cmd.OutOrStdout(), pushed)
		}
		return nil
	}
	o.Register(cmd)
	printer.OutputFlag(cmd, &output, "", "text", "json")
	return cmd
}

// pushBlob sends a file to the hub, unless the hub has its content.
func pushBlob(cmd *cobra.Command, c *client.Client, name string) (b blobInfo, err error) {
	ctx := cmd.Context()
	f, err := os.Open(name)
	if err != nil {
		return b, err
	}
	defer f.Close()
	if b.Digest, b.Size, err = digestOf(name); err != nil {
		return b, err
	}
	b.File = name
	for try := 1; ; try++ {
		bar := &transferProgress{out: cmd.ErrOrStderr(), what: "pushing " + filepath.Base(name), total: b.Size}
		err = c.Upload(ctx, blobsPath+"/"+b.Digest, io.TeeReader(io.NewSectionReader(f, 0, b.Size), bar), b.Size, &b)
		lost := (*client.Unreachable)(nil)
		if err == nil || !errors.As(err, &lost) || try == pushTries || ctx.Err() != nil {
			return b, err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "! the connection was lost (%v): trying again\n", err)
		backoff.Sleep(ctx, time.Duration(try)*time.Second)
	}
}

// digestOf is the digest and the size of a file.
func digestOf(name string) (digest string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return resource.FormatDigest([sha256.Size]byte(h.Sum(nil))), size, err
}

// transferProgress prints how far a transfer is, if the output is a terminal.
type transferProgress struct {
	out         io.Writer
	what        string
	done, total int64
	said        time.Time
}

func (p *transferProgress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if _, screen := terminal.Size(p.out); screen && time.Since(p.said) > time.Second && p.total > 0 {
		p.said = time.Now()
		fmt.Fprintf(p.out, "%s: %d %% of %d MB\n", p.what, 100*p.done/p.total, p.total>>20)
	}
	return len(b), nil
}

func newBlobList() *cobra.Command {
	var o access.Hub
	return o.PrintList(&cobra.Command{
		Use:     "list",
		Short:   "List the blobs that the hub has",
		Long:    "List the blobs that the hub has, with their sizes and when they were last pushed or rendered.\n\n" + exitcode.Help,
		Example: "  edgebus blob list",
	}, func(ctx context.Context) (any, [][]string, error) {
		var list []blobInfo
		if err := o.Get(ctx, blobsPath, &list); err != nil {
			return nil, nil, err
		}
		rows := [][]string{{"DIGEST", "SIZE", "PUT"}}
		for _, b := range list {
			rows = append(rows, []string{b.Digest, strconv.FormatInt(b.Size, 10), resource.FormatTime(b.LastPut)})
		}
		return list, rows, nil
	})
}

func newBlobGet() *cobra.Command {
	var o access.Hub
	var to string
	cmd := &cobra.Command{
		Use:     "get DIGEST",
		Short:   "Write a blob's content to a file or the standard output",
		Long:    "Write a blob's content to a file or the standard output. Its digest is verified: FILE gets its name when that is done.\n\n" + exitcode.Help,
		Example: "  edgebus blob get sha256:… --file model.tar.gz",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: completeBlobs(&o, 1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if _, err := resource.ParseDigest(args[0]); err != nil {
			return err
		}
		body, size, err := o.Download(cmd.Context(), blobsPath+"/"+args[0])
		if err != nil {
			return err
		}
		defer body.Close()
		h, bar := sha256.New(), &transferProgress{out: cmd.ErrOrStderr(), what: "getting", total: size}
		if to == "" {
			if _, err := io.Copy(io.MultiWriter(cmd.OutOrStdout(), h, bar), body); err != nil {
				return err
			}
			return checkDigest(args[0], h.Sum(nil))
		}
		f, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".*.part")
		if err != nil {
			return err
		}
		defer func() {
			if err != nil {
				_ = errors.Join(f.Close(), os.Remove(f.Name()))
			}
		}()
		if _, err = io.Copy(io.MultiWriter(f, h, bar), body); err != nil {
			return err
		}
		if err = checkDigest(args[0], h.Sum(nil)); err != nil {
			return err
		}
		if err = errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		return os.Rename(f.Name(), to)
	}
	cmd.Flags().StringVarP(&to, "file", "f", "", "file to write; default: the standard output")
	o.Register(cmd)
	return cmd
}

func completeBlobs(o *access.Hub, most int) access.CompletionFunc {
	return access.CompleteEach(o, blobsPath, most, func(b blobInfo) string { return b.Digest })
}

func checkDigest(want string, sum []byte) error {
	if got := resource.FormatDigest([sha256.Size]byte(sum)); got != want {
		return fmt.Errorf("what the hub sent has the digest %s: try again", got)
	}
	return nil
}

func newBlobRemove() *cobra.Command {
	var o access.Hub
	return o.PerArgument(&cobra.Command{
		Use:     "rm DIGEST...",
		Short:   "Remove blobs that no spec refers to",
		Long:    "Remove blobs that no spec refers to, before their time is over (limits.blobs.age). A blob in use is refused.\n\n" + exitcode.Help,
		Example: "  edgebus blob rm sha256:…",

		ValidArgsFunction: completeBlobs(&o, -1),
	}, func(ctx context.Context, digest string) (string, error) {
		if _, err := resource.ParseDigest(digest); err != nil {
			return "", err
		}
		return digest + " removed", o.Remove(ctx, blobsPath+"/"+digest)
	})
}
