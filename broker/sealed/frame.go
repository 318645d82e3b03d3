// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/edgebus/edgebus/broker/ordered"
)

// A sealed frame is a head in clear text, which is authenticated, and the body, encrypted, with its tag. The head: kind, epoch, writer (random,
// new with each start and epoch), the writer's count of frames, hash of the frame before. Each frame has all that it takes to open it, the key
// and the log's identity aside: the first frame of its writer may have been trimmed.
const (
	kindFormat = 0x10 // rises when frames change
	kindFirst  = 1    // of what was appended as one
	kindLast   = 2

	writerSize  = 16
	tagSize     = 16
	headSize    = 1 + 8 + writerSize + 8 + sha256.Size
	sealedExtra = headSize + tagSize

	// MaxFrame is the most bytes of a sealed frame.
	MaxFrame = 512 << 10
	maxPart  = MaxFrame - sealedExtra
)

// Hash is that of a sealed frame. Since each frame has the one before in it, it stands for all up to there.
type Hash [sha256.Size]byte

type frameHead struct {
	kind   byte
	epoch  uint64
	writer [writerSize]byte
	count  uint64
	before Hash
}

func (h *frameHead) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, h.kind), h.epoch)
	b = binary.LittleEndian.AppendUint64(append(b, h.writer[:]...), h.count)
	return append(b, h.before[:]...)
}

func parseHead(b []byte) (h frameHead, ok bool) {
	if len(b) < sealedExtra || b[0]&^(kindFirst|kindLast) != kindFormat {
		return h, false
	}
	h.kind, h.epoch = b[0], binary.LittleEndian.Uint64(b[1:])
	at := 9 + copy(h.writer[:], b[9:])
	h.count = binary.LittleEndian.Uint64(b[at:])
	copy(h.before[:], b[at+8:headSize])
	return h, true
}

func nonceOf(count uint64) []byte {
	var n [12]byte
	binary.LittleEndian.PutUint64(n[:], count)
	return n[:]
}

// writerKey encrypts the frames of one writer in one epoch of one log. No other has the same, so that its count is used once with it.
type writerKey struct {
	log    ordered.LogID
	epoch  uint64
	writer [writerSize]byte
	aead   cipher.AEAD
}

func newWriterKey(k Key, log ordered.LogID, epoch uint64, writer [writerSize]byte) (*writerKey, error) {
	about := binary.LittleEndian.AppendUint64([]byte("edgebus log frame "), uint64(log))
	about = binary.LittleEndian.AppendUint64(about, epoch)
	raw, err := hkdf.Key(sha256.New, k[:], writer[:], string(about), len(k))
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &writerKey{log, epoch, writer, aead}, err
}

func (k *writerKey) is(log ordered.LogID, epoch uint64, writer [writerSize]byte) bool {
	return k != nil && k.log == log && k.epoch == epoch && k.writer == writer
}

// frameWriter seals the frames of a process, each with a number of its own, whatever becomes of it.
type frameWriter struct {
	key   *writerKey
	count uint64
}

// seal makes the frames of bodies, which follow a mark, and the mark after them.
func (w *frameWriter) seal(key Key, log ordered.LogID, epoch uint64, last Mark, bodies [][]byte) (frames [][]byte, _ Mark, err error) {
	if w.key == nil || w.key.log != log || w.key.epoch != epoch {
		var writer [writerSize]byte
		_, _ = rand.Read(writer[:]) // crypto/rand never fails
		if w.key, err = newWriterKey(key, log, epoch, writer); err != nil {
			return nil, last, err
		}
		w.count = 0
	}
	for _, body := range bodies {
		for kind := byte(kindFormat | kindFirst); kind&kindLast == 0; kind = kindFormat | kind&kindLast {
			part := body[:min(len(body), maxPart)]
			if body = body[len(part):]; len(body) == 0 {
				kind |= kindLast
			}
			w.count++
			h := frameHead{kind: kind, epoch: epoch, writer: w.key.writer, count: w.count, before: last.Hash}
			f := h.append(make([]byte, 0, len(part)+sealedExtra))
			f = w.key.aead.Seal(f, nonceOf(w.count), part, f)
			frames = append(frames, f)
			last = Mark{Epoch: epoch, Hash: sha256.Sum256(f)}
		}
	}
	return frames, last, nil
}

// frameChain opens the frames of a log in order.
type frameChain struct {
	last     Mark
	anywhere bool // the hash of the frame before the first isn't known
	key      *writerKey
	parts    []byte // what was opened of what was appended as one
	gathers  bool   // its end is missing
	whole    Mark   // the last of which nothing is missing
}

func newChain(from Mark) *frameChain {
	return &frameChain{last: from, anywhere: from.At > 0 && from.Hash == Hash{}, whole: from}
}

var (
	errFormat = errors.New("it is no sealed frame")
	errLink   = errors.New("it doesn't follow the frame before: frames are missing, are repeated or were put in another order, or the one before was replaced")
	errEpoch  = errors.New("it is of an epoch that was over")
	errPart   = errors.New("the beginning of what it is a part of is missing")
	errKey    = errors.New("it was changed, or was written with another key or for another log")
)

// open opens the next frame. What was appended as one is whole with its last frame.
func (c *frameChain) open(key Key, log ordered.LogID, f ordered.Frame) (body []byte, whole bool, err error) {
	h, ok := parseHead(f.Body)
	switch {
	case !ok:
		return nil, false, errFormat
	case !c.anywhere && h.before != c.last.Hash:
		return nil, false, errLink
	case h.epoch < c.last.Epoch:
		return nil, false, errEpoch
	case h.kind&kindFirst == 0 && !c.gathers:
		return nil, false, errPart
	}
	if !c.key.is(log, h.epoch, h.writer) {
		if c.key, err = newWriterKey(key, log, h.epoch, h.writer); err != nil {
			return nil, false, err
		}
	}
	if h.kind&kindFirst != 0 {
		c.parts = c.parts[:0] // what a writer didn't finish is none
	}
	if cap(c.parts) > maxKept && len(c.parts) == 0 {
		c.parts = nil
	}
	if c.parts, err = c.key.aead.Open(c.parts, nonceOf(h.count), f.Body[headSize:], f.Body[:headSize]); err != nil {
		return nil, false, errKey
	}
	c.last, c.anywhere = Mark{f.At, h.epoch, sha256.Sum256(f.Body)}, false
	if c.gathers = h.kind&kindLast == 0; c.gathers {
		return nil, false, nil
	}
	c.whole = c.last
	return c.parts, true, nil
}

const maxKept = 4 << 20 // of a buffer, between two frames

// BrokenError is the error for a frame that doesn't open. Nothing that was appended with it was handed over.
type BrokenError struct {
	At  ordered.Position
	Why error
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("the frame at position %d of the log doesn't open: %v", e.At, e.Why)
}

func (e *BrokenError) Unwrap() error { return e.Why }
