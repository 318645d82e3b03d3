// SPDX-License-Identifier: Apache-2.0

package hubdata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/follow"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// LogDir is where the hub's log is in its data directory: objects, what nodes reported, sessions, retained messages and wills.
const LogDir = "log"

// ClusterKeyFile has the key that seals the log of several hubs, in the data directory of each.
const ClusterKeyFile = "cluster.key"

// Program describes the hub's data to the commands check, backup and restore.
func Program() backup.Program {
	return backup.Program{
		Name: "cloudhub",
		DataDir: func(file string) (string, error) {
			cfg, err := configs.Load[configs.Hub]("cloudhub", file, nil)
			return cfg.Data.Dir, err
		},
		Survey:      surveyData,
		NewLineages: forkData, // alone, also with the backup of a hub of a cluster
		Rotate:      rotateOffline,
		TakeAuthority: func(from, dir string) (string, error) {
			if _, err := os.Stat(filepath.Join(dir, LogDir)); err == nil {
				return "", fmt.Errorf("%s is the directory of a hub that was started: it has an authority, and perhaps nodes that know it; name an empty directory", dir)
			}
			return enroll.TakeAuthority(from, dir)
		},
		CheckCopy:    checkCopy,
		TakeOver:     takeOverData,
		RelatedFiles: []string{LogDir, seal.FileName},
		CheckRelated: func(dir string) error {
			return WithStore(dir, func(st *disk.Store, _ *journal.Journal) error {
				_, _, err := checkSealKey(dir, st)
				return err
			})
		},
	}
}

// AuthorityOptions are how the authority in a data directory is opened.
func AuthorityOptions(cfg configs.Hub, log zerolog.Logger) enroll.AuthorityOptions {
	given := cfg.Auth.Authority
	return enroll.AuthorityOptions{Dir: cfg.Data.Dir, Cert: given.Cert, Key: given.Key, Names: cfg.Hub.Address, NodeValidity: given.NodeValidity, Log: log}
}

// BrokerTable is the number of the broker's table in the log.
const BrokerTable = 0

// LogOptions are how the hub's log is opened.
func LogOptions(dir string) journal.Options {
	return journal.Options{Dir: filepath.Join(dir, LogDir), Name: "the hub's log", Keeps: "the objects, sessions and retained messages", Version: cluster.RecordsVersion}
}

// OpenLog opens the hub's log. A directory with the files of an older hub, which had none, is refused.
func OpenLog(dir string, log zerolog.Logger, committed func(time.Duration, int, error), through func(ordered.Log) ordered.Log) (*journal.Journal, error) {
	if err := refuseFormer(dir); err != nil {
		return nil, err
	}
	o := LogOptions(dir)
	o.Log, o.Committed, o.Through = log, committed, through
	return journal.Open(o)
}

// OpenFiles opens the log of a hub that is to serve with store.engine files.
func OpenFiles(dir string, log zerolog.Logger, committed func(time.Duration, int, error), through func(ordered.Log) ordered.Log) (*journal.Journal, error) {
	records, err := OpenLog(dir, log, committed, through)
	if err != nil {
		return nil, err
	}
	err = refuseCopy(records)
	if _, missing := os.Stat(filepath.Join(dir, ClusterKeyFile)); err != nil && missing == nil {
		err = fmt.Errorf("%s is the data of a hub of a cluster, and store.engine is files: set it to nats. To begin a hub of its own with the data, make a backup and restore that", dir)
	}
	if err == nil {
		err = cluster.RaiseRecords(records)
	}
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return records, nil
}

// refuseFormer fails if a data directory is of a hub that kept its objects in a file of their own.
func refuseFormer(dir string) error {
	former := filepath.Join(dir, "hub.db")
	if _, err := os.Stat(former); err != nil {
		return nil
	}
	return fmt.Errorf("%s is of another version of this program, which kept objects in a file of their own. %s", former, disk.HowToMove(dir))
}

// ReadOrigin reads whether the log in a data directory is a copy, as each hub of a cluster has one, and whether it has records. Without a log it is none.
func ReadOrigin(dir string) (is, has bool, err error) {
	o := LogOptions(dir)
	if _, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		return false, false, refuseFormer(dir)
	}
	o.ReadOnly = true
	records, err := journal.Open(o)
	if err != nil {
		return false, false, err
	}
	_, is, err = journal.CopyIn(records).Origin()
	return is, records.Stats().Records > 0, errors.Join(err, records.Close())
}

// Snapshot takes the log of a running hub at one moment. No blob is removed until the backup is finished; those that are put
// meanwhile may be in it or not.
func Snapshot(records *journal.Journal, content *blobs.Store) backup.Snapshot {
	return mqttserver.SnapshotStores(records, func() ([]backup.Source, func(), error) {
		if content == nil { // of a hub that stands by, which removes none
			return nil, func() {}, nil
		}
		return nil, content.Hold(), nil
	})
}

func surveyData(dir string) []backup.DataPart {
	log, secrets, authority := backup.DataPart{Name: LogDir}, backup.DataPart{Name: seal.FileName}, backup.DataPart{Name: enroll.DirName}
	count := 0
	log.Err = WithStore(dir, func(st *disk.Store, records *journal.Journal) error {
		objects, err := surveyStore(st)
		if err != nil {
			return err
		}
		_, count, secrets.Err = checkSealKey(dir, st)
		authority.Contents, authority.Err = enroll.CheckAuthority(dir, st)
		sessions, err := mqttserver.DescribeSessions(records.Table(BrokerTable))
		log.Contents = objects + "; " + sessions
		return err
	})
	log.Unread = errors.As(log.Err, new(*journal.VersionError))
	if authority.Contents == "" && authority.Err == nil { // the store can't be read, and nobody can say which files there were
		authority.Contents, authority.Err = enroll.CheckAuthority(dir, nil)
	}
	parts := []backup.DataPart{log}
	if count > 0 || secrets.Err != nil { // or nobody can say which Secrets there are
		secrets.Contents = fmt.Sprintf("the key; it opens all Secrets (%d)", count)
		parts = append(parts, secrets)
	}
	if authority.Contents != "" || authority.Err != nil {
		parts = append(parts, authority)
	}
	contents := backup.DataPart{Name: blobs.DirName}
	if contents.Contents, contents.Err = blobs.Survey(dir); contents.Contents != "" || contents.Err != nil {
		parts = append(parts, contents)
	}
	return parts
}

// WithStore opens the log of a hub that is stopped.
func WithStore(dir string, look func(*disk.Store, *journal.Journal) error) (err error) {
	if err := refuseFormer(dir); err != nil {
		return err
	}
	o := LogOptions(dir)
	o.ReadOnly = true
	records, err := journal.Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	st, err := disk.Open(disk.Options{Journal: records, ReadOnly: true})
	if err != nil {
		return err
	}
	return errors.Join(look(st, records), st.Close())
}

func surveyStore(st *disk.Store) (has string, err error) {
	if err := st.Check(); err != nil {
		return "", err
	}
	counts, rev := st.Counts()
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	if words == nil {
		words = []string{"no objects"}
	}
	nodes, keys := 0, 0
	for r, err := range st.All(context.Background()) {
		if err != nil {
			return "", err
		}
		n, err := twin.CheckReplica(r)
		if err != nil {
			return "", err
		}
		nodes, keys = nodes+1, keys+n
	}
	has = fmt.Sprintf("%s, at revision %d; %d keys that %d nodes reported", strings.Join(words, ", "), rev, keys, nodes)
	return has + fmt.Sprintf("; it is %s", resource.HubID(st.Identity())), nil
}

// replacedFile has the identities of the hubs whose copies were taken over in a data directory, a line each.
const replacedFile = "replaced"

// ReadReplaced reads the identities of the hubs in whose place a data directory is.
func ReadReplaced(dir string) (ids []string, err error) {
	text, err := os.ReadFile(filepath.Join(dir, replacedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	ids = strings.Fields(string(text))
	for _, id := range ids {
		if _, err := resource.ParseHubID(id); err != nil {
			return nil, fmt.Errorf("%s: %w; take it from a backup", filepath.Join(dir, replacedFile), err)
		}
	}
	return ids, err
}

// becomeAnother gives the data of a copy another identity, and notes the one that it replaces: the hub that it is of, should it come back, then
// leaves the nodes alone that this one was connected to.
func becomeAnother(dir string, st *disk.Store) error {
	ids, err := ReadReplaced(dir)
	if err == nil { // first: a copy whose takeover is interrupted is taken over again
		ids = append(ids, resource.HubID(st.Identity()).String())
		err = datadir.WriteFile(filepath.Join(dir, replacedFile), []byte(strings.Join(ids, "\n")+"\n"))
	}
	st.BecomeAnother()
	return err
}

// forkData raises revisions and the versions of desired values and Secrets. The maps of cloud-owned keys get new lineages with every start
// of the hub.
func forkData(dir string, stamp uint32) error {
	err := os.Remove(filepath.Join(dir, ClusterKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, Fork(dir, stamp, nil))
}

// takeOverData is forkData for a copy of another hub.
func takeOverData(dir string, stamp uint32) error {
	if err := Fork(dir, stamp, func(st *disk.Store) error { return becomeAnother(dir, st) }); err != nil {
		return err
	}
	for _, name := range []string{follow.StateFile, follow.MetricsFile} { // it follows nobody now
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Fork makes revisions and versions of data in dir go on above all that may have been given after it was copied.
func Fork(dir string, stamp uint32, first func(*disk.Store) error) (err error) {
	records, err := OpenLog(dir, zerolog.Nop(), nil, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	st, err := disk.Open(disk.Options{Journal: records})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if first != nil {
		if err := first(st); err != nil {
			return err
		}
	}
	if err := records.Renew(); err != nil {
		return err
	}
	if err := st.Fork(func(rev uint64) uint64 { return link.ForkVer(rev, stamp) }); err != nil {
		return err
	}
	ctx := context.Background()
	if err := errors.Join(enroll.MergeRestored(filepath.Dir(dir), dir), enroll.ForgetInvitations(ctx, st)); err != nil {
		return err
	}
	models, err := deviceModels(ctx, st)
	if err != nil {
		return err
	}
	forks := map[string]func(store.Object) ([]byte, error){
		"Device":            func(o store.Object) ([]byte, error) { return forkDevice(o, models, stamp) },
		resource.KindSecret: func(o store.Object) ([]byte, error) { return forkSecret(o, stamp) },
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrentWrites)
	for kind, fork := range forks {
		page, err := st.List(ctx, kind, store.ListOptions{})
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		for _, o := range page.Items {
			data, err := fork(o)
			if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", o.Key, err), g.Wait())
			}
			g.Go(func() error {
				_, err := st.Update(ctx, store.Object{Key: o.Key, Data: data}, o.Rev)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return journal.CopyIn(records).Detach() // last: until then the hub doesn't start on a copy
}

// forkSecret raises a Secret's generation, and with it its version: after the backup there may have been other values with the next one.
// The rest of the JSON is unchanged.
func forkSecret(o store.Object, stamp uint32) ([]byte, error) {
	fields, meta := make(map[string]json.RawMessage), make(map[string]json.RawMessage)
	generation := uint64(0)
	err := errors.Join(json.Unmarshal(o.Data, &fields), json.Unmarshal(fields["metadata"], &meta))
	if err == nil && meta["generation"] != nil {
		err = json.Unmarshal(meta["generation"], &generation)
	}
	if err != nil {
		return nil, err
	}
	if meta["generation"], err = json.Marshal(link.ForkVer(generation, stamp)); err != nil {
		return nil, err
	}
	if fields["metadata"], err = json.Marshal(meta); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

const concurrentWrites = 256 // that share a commit

func deviceModels(ctx context.Context, st store.Reader) (map[store.Key]resource.DeviceModel, error) {
	page, err := st.List(ctx, "DeviceModel", store.ListOptions{})
	if err != nil {
		return nil, err
	}
	models := make(map[store.Key]resource.DeviceModel)
	for _, o := range page.Items {
		var m resource.DeviceModel
		if err := json.Unmarshal(o.Data, &m); err != nil {
			return nil, fmt.Errorf("%s: %w", o.Key, err)
		}
		models[o.Key] = m
	}
	return models, nil
}

// forkDevice raises the versions of a Device's desired values, also of properties without one: there may have been one
// after the backup. The rest of the JSON is unchanged.
func forkDevice(o store.Object, models map[store.Key]resource.DeviceModel, stamp uint32) ([]byte, error) {
	var d resource.Device
	fields := make(map[string]json.RawMessage)
	if err := errors.Join(json.Unmarshal(o.Data, &d), json.Unmarshal(o.Data, &fields)); err != nil {
		return nil, err
	}
	meta := d.DesiredMeta
	if meta == nil {
		meta = make(map[string]resource.DesiredMeta)
	}
	model := models[store.Key{Kind: "DeviceModel", Namespace: o.Namespace, Name: d.Spec.DeviceModelRef.Name}]
	for _, p := range model.Spec.Properties {
		if _, known := meta[p.Name]; !known {
			meta[p.Name] = resource.DesiredMeta{Cleared: true}
		}
	}
	for name, m := range meta {
		m.Ver = link.ForkVer(m.Ver, stamp)
		meta[name] = m
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	fields["desiredMeta"] = text
	return json.Marshal(fields)
}
