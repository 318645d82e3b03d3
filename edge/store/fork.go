package store

import (
	"github.com/fxamacker/cbor/v2"

	"github.com/edgebus/edgebus/topics/link"
)

// Fork makes a store that was restored from a backup fit to go on. What the edge has
// written since the backup is known elsewhere: the map of edge-owned keys gets a
// lineage of its own, and every version a place above all that were given. stamp is
// higher at each restore; see link.State.Fork. It is one commit.
func (s *Store) Fork(stamp uint32) error {
	b := Batch{Effective: make(map[string]*Effective)}
	var floor uint64
	err := s.read(func(_ uint64, kind byte, key, body []byte) error {
		switch kind {
		case kindUpState:
			var state link.State
			if err := state.UnmarshalBinary(body); err != nil {
				return err
			}
			b.Up.Dirty, b.Up.State = true, state.Fork(s.opts.Rand, stamp)
		case kindUp:
			e, err := link.ParseEntry(string(key), body)
			if err != nil {
				return err
			}
			b.Up.Entries = append(b.Up.Entries, e.Fork(stamp))
		case kindEffective:
			return s.forkEffective(b.Effective, string(key), body, stamp)
		case kindFloor:
			return cbor.Unmarshal(body, &floor)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.Floor = link.ForkVer(floor, stamp)
	return s.Commit(b)
}

func (s *Store) forkEffective(into map[string]*Effective, key string, body []byte, stamp uint32) error {
	e := new(Effective)
	if err := cbor.Unmarshal(body, e); err != nil {
		return err
	}
	e.Ver = link.ForkVer(e.Ver, stamp)
	if e.Override { // an edge-owned key's
		e.SourceVer = link.ForkVer(e.SourceVer, stamp)
	}
	into[key] = e
	return nil
}
