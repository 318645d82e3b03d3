// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxRecent bounds what is read of the log for its last entries.
const maxRecent = 4 << 20

// Recent returns the last entries that have all words in them, the newest first, and at most so many. It looks at the newest 4 MiB.
func (l *Log) Recent(most int, words []string) ([]json.RawMessage, error) {
	list := []json.RawMessage{}
	left := int64(maxRecent)
	for _, name := range l.files() {
		if len(list) == most || left <= 0 {
			break
		}
		text, err := tail(name, left)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed for a newer one
		}
		if err != nil {
			return nil, err
		}
		left -= int64(len(text))
		lines := bytes.Split(text, []byte{'\n'})
		slices.Reverse(lines)
		for _, line := range lines {
			if len(list) < most && json.Valid(line) && hasWords(line, words) {
				list = append(list, bytes.Clone(line))
			}
		}
	}
	return list, nil
}

// files are the log's files, the newest first.
func (l *Log) files() []string {
	ext := filepath.Ext(l.opts.File)
	older, _ := filepath.Glob(strings.TrimSuffix(l.opts.File, ext) + "-*" + ext) // the pattern is well-formed unless the path is strange: then there are none
	slices.Sort(older)                                                           // they have the time in their name
	slices.Reverse(older)
	return append([]string{l.opts.File}, older...)
}

// tail reads the end of a file, from the beginning of a line.
func tail(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-most)
	text, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if from > 0 {
		_, text, _ = bytes.Cut(text, []byte{'\n'})
	}
	return text, err
}

func hasWords(line []byte, words []string) bool {
	lower := bytes.ToLower(line)
	return !slices.ContainsFunc(words, func(w string) bool { return !bytes.Contains(lower, []byte(strings.ToLower(w))) })
}
