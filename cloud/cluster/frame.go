// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
)

// Kinds of frames. An unknown one is of a later version: who meets it stops.
const (
	kindTake    = 1 // the writer owns the log from here on; its name, and its address for other hubs
	kindCommit  = 2 // a group of the journal
	kindIdle    = 3 // the owner is there; as a take
	kindRelease = 4 // the owner stops: nobody need wait until it has been silent for long
	kindNext    = 5 // as idle; the program of the next version writes it, which a build tag makes to try upgrades
)

// RecordsVersion is the highest version that this program knows of what hubs write into the log: kinds of frames, and all records in groups. It rises with
// each of them that a program of the version before can't read, or would read otherwise. What is new with a version is written once the log is of it (Records).
const RecordsVersion = 1 + nextRecords

// RaiseRecords has the records of a hub that nobody else stands by for be of the program's version.
func RaiseRecords(j *journal.Journal) error {
	if journal.VersionOf(j) < RecordsVersion {
		return journal.SetVersion(j, RecordsVersion)
	}
	return nil
}

// frame is what a member appends. Its number is its own for each writer, which is new with each start.
type frame struct {
	kind           byte
	writer, number uint64
	time           int64 // the writer's, in milliseconds since 1970; it never goes back in a log
	body           []byte
}

const frameHead = 1 + 8 + 8 + 8

func (f frame) encode() []byte {
	b := make([]byte, 0, frameHead+len(f.body))
	b = binary.LittleEndian.AppendUint64(append(b, f.kind), f.writer)
	b = binary.LittleEndian.AppendUint64(b, f.number)
	return append(binary.LittleEndian.AppendUint64(b, uint64(f.time)), f.body...)
}

func decodeFrame(b []byte) (f frame, err error) {
	if len(b) < frameHead || b[0] < kindTake || b[0] > kindRelease+nextRecords {
		return f, errors.New("a frame of an unknown kind: it is of another version of Edgebus; upgrade this hub")
	}
	number := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	return frame{b[0], number(1), number(9), int64(number(17)), b[frameHead:]}, nil
}

// encodeWriter is what an owner says of itself. Neither has a line break.
func encodeWriter(name, address, says string) []byte {
	return []byte(name + "\n" + address + "\n" + says)
}

func decodeWriter(body []byte) (name, address, says string) {
	name, rest, _ := strings.Cut(string(body), "\n")
	address, says, _ = strings.Cut(rest, "\n")
	return name, address, says
}

// originOf is what the journal keeps of where it is in the log.
func originOf(log ordered.LogID, m sealed.Mark) journal.Origin {
	return journal.Origin{Log: log, At: m.At, Hash: append(binary.LittleEndian.AppendUint64(nil, m.Epoch), m.Hash[:]...)}
}

func markOf(o journal.Origin) (m sealed.Mark, err error) {
	if o.At == 0 {
		return m, nil
	}
	if len(o.Hash) != 8+len(m.Hash) {
		return m, fmt.Errorf("the journal's place in the log has %d bytes of a hash", len(o.Hash))
	}
	m.At, m.Epoch = o.At, binary.LittleEndian.Uint64(o.Hash)
	copy(m.Hash[:], o.Hash[8:])
	return m, nil
}
