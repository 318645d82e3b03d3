// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// sum is the SHA-256 of a file's content, and its size as far as it is known.
func (w Spec) sum(f resource.RenderedFile) (string, int64, error) {
	switch {
	case f.Digest != "":
		return strings.TrimPrefix(f.Digest, "sha256:"), f.Size, nil
	case f.Secret == nil:
		text := inlineContent(f.Content)
		sum := sha256.Sum256(text)
		return hex.EncodeToString(sum[:]), 0, nil
	}
	r, err := w.open(f)
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(r, maxSecret+1))
	if err == nil && n > maxSecret {
		err = fmt.Errorf("has more than %d bytes", maxSecret)
	}
	if err != nil {
		return "", 0, &Error{Reason: resource.FailedContent, Path: f.Path, Err: err}
	}
	return hex.EncodeToString(hash.Sum(nil)), 0, nil
}

func inlineContent(c resource.Content) []byte {
	if len(c.Base64) > 0 {
		return c.Base64
	}
	return []byte(c.Text)
}

// open opens a file's content.
func (w Spec) open(f resource.RenderedFile) (io.ReadCloser, error) {
	if f.Digest == "" && f.Secret == nil {
		return io.NopCloser(bytes.NewReader(inlineContent(f.Content))), nil
	}
	if w.Content == nil {
		return nil, failf(resource.FailedContent, f.Path, "nothing supplies its content")
	}
	r, err := w.Content(f.Content)
	if err != nil {
		return nil, &Error{Reason: resource.FailedContent, Path: f.Path, Err: err}
	}
	return r, nil
}

func (s *Store) stageOne(ctx context.Context, want Spec, o *operation, sync bool) error {
	switch {
	case o.Attrs != nil:
		if err := s.host.mkdir(o.New, *o.Attrs); err != nil {
			return toWriteError(o.Path, "making the new directory", err)
		}
		return nil
	case o.from != "":
		if err := s.host.duplicate(o.from, o.New); err != nil {
			return toWriteError(o.Path, "restoring the former file", err)
		}
		return nil
	case o.entry.Type == resource.FileLink:
		if err := s.host.symlink(o.entry.Target, o.New, o.entry.Attrs); err != nil {
			return toWriteError(o.Path, "making the link", err)
		}
		return nil
	}
	content, err := want.open(o.entry.RenderedFile)
	if err != nil {
		return err
	}
	defer content.Close()
	return s.write(ctx, o, content, sync)
}

// write stages a regular file.
func (s *Store) write(ctx context.Context, o *operation, content io.Reader, sync bool) error {
	f, err := s.host.create(o.New)
	if err != nil {
		return toWriteError(o.Path, "making the new file", err)
	}
	if err := s.fill(ctx, f, o, content, sync); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (s *Store) fill(ctx context.Context, f *newFile, o *operation, content io.Reader, sync bool) error {
	e := o.entry
	hash := sha256.New()
	in := &contentReader{ctx: ctx, r: content}
	n, err := io.Copy(f, io.TeeReader(in, hash))
	if in.err != nil {
		return &Error{Reason: resource.FailedContent, Path: o.Path, Err: in.err}
	}
	if err != nil {
		return toWriteError(o.Path, "writing the new content", err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != e.Sum {
		return failf(resource.FailedContent, o.Path, "the content that came has %d bytes and the digest sha256:%s; sha256:%s is wanted", n, got, e.Sum)
	}
	if old, err := s.host.read(o.Key); err == nil {
		err = f.keepXattrs(old, contentReplaced)
		old.Close()
		if err != nil {
			return toWriteError(o.Path, "keeping extended attributes", err)
		}
	}
	if err := f.setAttrs(e.Attrs); err != nil {
		return toWriteError(o.Path, "setting owner and mode", err)
	}
	if sync {
		if err := f.sync(); err != nil {
			return toWriteError(o.Path, "syncing the new content", err)
		}
	}
	return nil
}

// contentReader tells an error of the content from one of the disk.
type contentReader struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (s *contentReader) Read(p []byte) (int, error) {
	if s.err = s.ctx.Err(); s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
