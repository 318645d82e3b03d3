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
	err := s.view(func(v *view) error {
		states, at, err := v.states()
		if err != nil {
			return err
		}
		floor = at
		if state := states[stateUp]; state != nil {
			b.Up.Dirty, b.Up.State = true, state.Fork(s.opts.Rand, stamp)
		}
		err = v.each(kindUp, func(key string, body []byte) error {
			e, err := link.ParseEntry(key, body)
			b.Up.Entries = append(b.Up.Entries, e.Fork(stamp))
			return err
		})
		if err != nil {
			return err
		}
		return v.each(kindEffective, func(key string, body []byte) error {
			return forkEffective(b.Effective, key, body, stamp)
		})
	})
	if err != nil {
		return err
	}
	b.Floor = link.ForkVer(floor, stamp)
	return s.Commit(b)
}

func forkEffective(into map[string]*Effective, key string, body []byte, stamp uint32) error {
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
