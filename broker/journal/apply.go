// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/wal"
)

// Origin is where in another log a journal is that copies it. It is a record of the journal, which is in one frame with what was applied up to
// there: after a kill the copy goes on exactly behind what it has.
type Origin struct {
	Log ordered.LogID
	At  ordered.Position // of the last frame that was applied
	// Whole is where the other log ended when the copy was begun. Up to there it has a part of what lives: records of segments that were
	// retired before it began are copied behind them.
	Whole ordered.Position
	Hash  []byte // of that frame, in a log that chains frames; may be nil
}

// IsWhole reports whether the copy has all that lives in the other log at its position.
func (o Origin) IsWhole() bool { return o.At >= o.Whole }

const (
	// ownTable is the number of the table that belongs to the journal itself.
	ownTable     = 0xff
	originRecord = ownTable << TableShift
	originSize   = 3 * 8 // before the hash
)

// Change stores the origin with other changes of one commit.
func (o Origin) Change() RecordChange {
	b := make([]byte, 0, originSize+len(o.Hash))
	for _, n := range []uint64{uint64(o.Log), uint64(o.At), uint64(o.Whole)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return RecordChange{ID: originRecord, Value: append(b, o.Hash...)}
}

// LogCopy is a journal that has what another log has.
type LogCopy struct{ journal *Journal }

// CopyIn is the copy in a journal, which nothing else is committed to.
func CopyIn(j *Journal) LogCopy { return LogCopy{j} }

// Origin says what the journal is a copy of; ok is false if it is none.
func (c LogCopy) Origin() (o Origin, ok bool, err error) {
	j := c.journal
	j.places.RLock()
	_, ok = j.index.get(originRecord)
	j.places.RUnlock()
	if !ok {
		return o, false, nil
	}
	err = j.Read([]uint64{originRecord}, func(_ int, b []byte) error {
		if len(b) < originSize {
			return errOperation
		}
		number := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
		o = Origin{ordered.LogID(number(0)), ordered.Position(number(1)), ordered.Position(number(2)), append([]byte(nil), b[originSize:]...)}
		return nil
	})
	return o, err == nil, err
}

// Detach makes a copy a journal of its own.
func (c LogCopy) Detach() error { return c.journal.Sync([]RecordChange{{ID: originRecord}}) }

// ErrOrder is in the chain of an error of Apply for frames that don't follow what the copy has.
var ErrOrder = errors.New("the frames don't follow what the copy has")

// Apply makes frames of another journal durable, all or none, and where they end there. They are checked as at a start. What is local
// to the other one, its compaction and its own origin, is left out. Nothing is applied of frames with which the records are of a version that isn't known here. It must not be called by two at a time.
func (c LogCopy) Apply(to Origin, bodies ...[]byte) error {
	had, is, err := c.Origin()
	if err != nil {
		return err
	}
	if is && (had.Log != to.Log || had.At > to.At || had.At == to.At && len(bodies) > 0) {
		return fmt.Errorf("%w: it is at %d of log %x, they end at %d of log %x", ErrOrder, had.At, uint64(had.Log), to.At, uint64(to.Log))
	}
	var changes []RecordChange
	version := c.journal.version.Load()
	for _, body := range bodies {
		for len(body) > 0 {
			op, err := nextOp(body)
			if err != nil {
				return fmt.Errorf("a frame before %d of log %x: %w", to.At, uint64(to.Log), err)
			}
			body = body[op.size:]
			sets, err := op.versionIn()
			if err == nil {
				err = c.journal.opts.checkVersion(sets)
			}
			switch {
			case err != nil:
				return err
			case sets > 0:
				version = sets
				changes = append(changes, RecordChange{ID: op.id, Value: op.value})
			case op.kind == opBase || op.id>>TableShift == ownTable:
			case op.kind == opPut:
				changes = append(changes, RecordChange{ID: op.id, Value: op.value})
			default:
				changes = append(changes, RecordChange{ID: op.id})
			}
		}
	}
	err = c.journal.Sync(append(changes, to.Change()))
	if err == nil {
		c.journal.version.Store(version)
	}
	return err
}

// Note stores where the copy is with the next group, or soon. Nobody waits for it.
func (c LogCopy) Note(at Origin) { c.journal.Commit([]RecordChange{at.Change()}, nil) }

// Source is a journal's log, for who copies it.
type Source struct {
	ordered.Reader
	journal *Journal
}

// SourceOf is the log of a journal.
func SourceOf(j *Journal) Source { return Source{j.order, j} }

// Hold keeps the frames that there are until release is called, for who begins to copy them.
func (s Source) Hold() (release func()) { return wal.NewOrdered(s.journal.log).Hold() }

// Behind is about how many bytes of frames there are after a position.
func (s Source) Behind(at ordered.Position) int64 { return wal.NewOrdered(s.journal.log).Behind(at) }

// sharedLog is the log that others have as well, to which groups are appended first.
type sharedLog struct {
	append func(ctx context.Context, body []byte) (Origin, error) // nil: there is none
	behind error                                                  // a group is there, and could not be stored here
}

// add appends a group, and adds to it where it is there.
func (s *sharedLog) add(g *commitGroup) error {
	if s.append == nil || s.behind != nil {
		return s.behind
	}
	at, err := s.append(context.Background(), g.buf[wal.HeadSize:])
	if err == nil {
		g.add(at.Change())
	}
	return err
}

// failed is the error for a group that could not be stored here. If it is in the other log nothing is stored any more: it would be missing
// before the next. What is here is to be opened again, and to read the other log from its origin on.
func (s *sharedLog) failed(err error) error {
	if s.append == nil {
		return err
	}
	s.behind = fmt.Errorf("%w: it is in the log that others have, and could not be stored here: %w", ordered.ErrUnknown, err)
	return s.behind
}
