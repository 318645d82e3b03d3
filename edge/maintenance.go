// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/store"
)

// maintenance describes the core's data to the commands check, backup and restore.
func maintenance() backup.Program {
	return backup.Program{
		Name: "edgecore",
		DataDir: func(file string) (string, error) {
			cfg, err := configs.Load[configs.Core]("edgecore", file, nil)
			return cfg.Data.Dir, err
		},
		Survey: surveyStores,
		NewLineages: func(dir string, stamp uint32) error {
			st, err := store.Open(store.Options{Dir: dir, Rand: rand.Uint64})
			if err != nil {
				return err
			}
			return errors.Join(st.Fork(stamp), st.Close())
		},
	}
}

// storeSnapshot takes the stores of a running core at one moment.
func storeSnapshot(st *store.Store, sessions *journal.Journal) backup.Snapshot {
	return mqttserver.SnapshotStores(sessions, func() ([]backup.Source, func(), error) {
		tree, err := st.Snapshot()
		if err != nil {
			return nil, nil, err
		}
		return append(mqttserver.BackupSources(tree.Log), tree.Database), tree.Release, nil
	})
}

func surveyStores(dir string) []backup.DataPart {
	tree, secrets := backup.DataPart{Name: store.DirName}, backup.DataPart{Name: seal.FileName}
	snap, err := summarizeStore(dir)
	tree.Contents, tree.Err = snap.tree, err
	parts := []backup.DataPart{tree}
	if secrets.Contents = snap.secrets; secrets.Contents != "" {
		parts = append(parts, secrets)
	}
	return append(parts, mqttserver.SurveyJournal(dir))
}

// storeSummary is what the store has, in words.
type storeSummary struct{ tree, secrets string }

func summarizeStore(dir string) (has storeSummary, err error) {
	key, lacking := readSecretsKey(dir)
	o := store.Options{Dir: dir, Rand: rand.Uint64, ReadOnly: true}
	if key != nil {
		o.Secrets = key
	}
	st, err := store.Open(o)
	if err != nil {
		return has, err
	}
	snap, err := st.Load()
	if err == nil {
		err = st.Check() // also pages that Load does not reach
	}
	if err = errors.Join(err, st.Close()); err != nil {
		return has, err
	}
	switch {
	case snap.Secrets == 0:
	case snap.Unreadable == 0:
		has.secrets = fmt.Sprintf("the key; it decrypts all values of Secrets (%d)", snap.Secrets)
	case lacking == "":
		has.secrets = fmt.Sprintf("the key; it doesn't decrypt %d of %d values of Secrets: the hub has to send these again", snap.Unreadable, snap.Secrets)
	default:
		has.secrets = fmt.Sprintf("%s; the hub has to send %d values of Secrets again", lacking, snap.Unreadable)
	}
	l := snap.Up.Lineage()
	has.tree = fmt.Sprintf("%d keys of the node's own (lineage %d/%x, written up to %d, the hub has it up to %d), %d of the cloud's, %d values in force",
		snap.Up.Len(), l.N, l.Nonce, snap.Up.Seq(), snap.Up.Acked(), snap.Down.Len()+snap.Unreadable, len(snap.Effective))
	return has, nil
}
