// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/signin"
	"github.com/edgebus/edgebus/topics/resource"
)

// Extensions of kubeconfigs, which kubectl leaves alone: the hub's MQTT address, of a cluster or of a context (which comes first), and
// of a user how its token was got, and how to get the next one.
//
//	extensions:
//	- name: edgebus.io/mqtt
//	  extension: {server: "mqtts://hub.example.org:8883"}
const (
	MQTTExtension  = "edgebus.io/mqtt"
	loginExtension = "edgebus.io/oidc"
)

// Kubeconfig is what the files have in which kubectl and edgebus keep clusters, users and contexts: those of $KUBECONFIG, else
// ~/.kube/config. Paths in it are as the files have them.
type Kubeconfig struct {
	*api.Config
	paths *clientcmd.PathOptions
}

// ReadKubeconfig reads all files. One that doesn't exist has no entries.
func ReadKubeconfig() (*Kubeconfig, error) {
	paths := &clientcmd.PathOptions{
		EnvVar: clientcmd.RecommendedConfigPathEnvVar, LoadingRules: &clientcmd.ClientConfigLoadingRules{DoNotResolvePaths: true},
	}
	if home, err := os.UserHomeDir(); err == nil {
		paths.GlobalFile = filepath.Join(home, clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName)
	}
	config, err := paths.GetStartingConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &Kubeconfig{config, paths}, nil
}

// ChangeKubeconfig reads all files, and writes those that have to change. Another program that writes them at the same time is an error.
func ChangeKubeconfig(change func(*Kubeconfig) error) error {
	k, err := ReadKubeconfig()
	if err != nil {
		return err
	}
	before := k.DeepCopy()
	if err := change(k); err != nil {
		return err
	}
	return k.write(before)
}

// write writes the files that have to change, each whole or not at all, and readable by their owner only. clientcmd, which writes in place and
// several times, changes copies of them. before is what the files had.
func (k *Kubeconfig) write(before *api.Config) error {
	if k.paths.GetDefaultFilename() == "" {
		return errors.New("there is no place for a kubeconfig: set HOME or KUBECONFIG")
	}
	paths := slices.DeleteFunc(slices.Clone(k.paths.GetLoadingPrecedence()), func(path string) bool { return path == "" })
	unlock, err := lockKubeconfigs(paths)
	defer unlock()
	if err != nil {
		return err
	}
	now, err := ReadKubeconfig()
	if err == nil && !reflect.DeepEqual(before, now.Config) { // clientcmd would undo it
		err = errors.New("kubeconfig: another program has changed it meanwhile: try again")
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(k.paths.GetDefaultFilename()), ".edgebus-") // its owner's only
	if err != nil {
		dir, err = os.MkdirTemp("", "edgebus-kubeconfig-") // another of the files may be in a directory that can be written
	}
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	copies, texts := &kubeconfigCopies{paths: k.paths, originals: paths}, map[string][]byte{}
	for i, path := range paths {
		copied := filepath.Join(dir, strconv.Itoa(i))
		copies.of = append(copies.of, copied)
		if texts[path], err = os.ReadFile(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(copied, texts[path], 0o600)
		}
		if err != nil {
			return err
		}
	}
	if err := k.modify(copies); err != nil {
		return err
	}
	for i, path := range paths {
		text, err := os.ReadFile(copies.of[i])
		if errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Equal(text, texts[path]) {
			continue
		}
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target // the symbolic link stays
		}
		if err == nil {
			err = datadir.WriteFile(path, text)
		}
		if err != nil {
			return fmt.Errorf("kubeconfig: %w", err)
		}
	}
	return nil
}

// modify has clientcmd change copies.
func (k *Kubeconfig) modify(copies *kubeconfigCopies) error {
	next := k.DeepCopy()
	for _, c := range next.Clusters {
		c.LocationOfOrigin = copies.at(c.LocationOfOrigin)
	}
	for _, c := range next.Contexts {
		c.LocationOfOrigin = copies.at(c.LocationOfOrigin)
	}
	for _, u := range next.AuthInfos {
		u.LocationOfOrigin = copies.at(u.LocationOfOrigin)
	}
	err := clientcmd.ModifyConfig(copies, *next, false)
	for err == nil && next.CurrentContext == "" { // in which case clientcmd clears it in one file only
		now, readErr := copies.GetStartingConfig()
		if readErr != nil || now.CurrentContext == "" {
			break
		}
		now.CurrentContext = ""
		err = clientcmd.ModifyConfig(copies, *now, false)
	}
	return err
}

// kubeconfigCopies are copies of the files, in their places for clientcmd: a clientcmd.ConfigAccess.
type kubeconfigCopies struct {
	paths         *clientcmd.PathOptions
	originals, of []string
}

// at is the copy of a file.
func (c *kubeconfigCopies) at(path string) string {
	if i := slices.Index(c.originals, path); i >= 0 {
		return c.of[i]
	}
	return path
}

// GetLoadingPrecedence is of the interface, as the following are. Its caller sorts what it gets.
func (c *kubeconfigCopies) GetLoadingPrecedence() []string { return slices.Clone(c.of) }

// GetStartingConfig reads the copies.
func (c *kubeconfigCopies) GetStartingConfig() (*api.Config, error) {
	return (&clientcmd.ClientConfigLoadingRules{DoNotResolvePaths: true, Precedence: c.of}).Load()
}

// GetDefaultFilename is the copy to which new entries are added.
func (c *kubeconfigCopies) GetDefaultFilename() string { return c.at(c.paths.GetDefaultFilename()) }

// IsExplicitFile says that no file was named.
func (*kubeconfigCopies) IsExplicitFile() bool { return false }

// GetExplicitFile is none.
func (*kubeconfigCopies) GetExplicitFile() string { return "" }

// lockKubeconfigs makes the lock files that kubectl makes, too, but where nothing can be written.
func lockKubeconfigs(paths []string) (unlock func(), err error) {
	var locks []string
	unlock = func() {
		for _, lock := range locks {
			_ = os.Remove(lock)
		}
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(paths))) { // in one order
		var lock *os.File
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			lock, err = os.OpenFile(path+".lock", os.O_CREATE|os.O_EXCL, 0o600)
		}
		switch {
		case err == nil:
			locks = append(locks, lock.Name())
			_ = lock.Close()
		case errors.Is(err, fs.ErrExist):
			return unlock, fmt.Errorf("kubeconfig: another program is writing it; if none is, remove %s.lock", path)
		case !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS):
			return unlock, fmt.Errorf("kubeconfig: %w", err)
		}
	}
	return unlock, nil
}

// ContextNames are the names of all contexts, in their order.
func (k *Kubeconfig) ContextNames() []string { return slices.Sorted(maps.Keys(k.Contexts)) }

// ErrNoContext is that there is no context of a name.
func (k *Kubeconfig) ErrNoContext(name string) error {
	return exitcode.Errorf(exitcode.NotFound, "there is no context %s: edgebus context list shows those that there are, edgebus context set %s --server https://… adds it%s",
		name, name, resource.DidYouMean(name, k.ContextNames()))
}

// TargetOf is the hub that a context names, and the credentials for it.
func (k *Kubeconfig) TargetOf(name string) (p Target, err error) {
	c := k.Contexts[name]
	if c == nil {
		return p, k.ErrNoContext(name)
	}
	p.Namespace = c.Namespace
	at := api.NewConfig()
	if c.Cluster != "" {
		if k.Clusters[c.Cluster] == nil {
			return p, exitcode.Errorf(exitcode.NotFound, "context %s names the cluster %s, which the kubeconfig doesn't have", name, c.Cluster)
		}
		at.Clusters[""] = k.Clusters[c.Cluster].DeepCopy()
	}
	if c.AuthInfo != "" {
		if k.AuthInfos[c.AuthInfo] == nil {
			return p, exitcode.Errorf(exitcode.NotFound, "context %s names the user %s, which the kubeconfig doesn't have", name, c.AuthInfo)
		}
		at.AuthInfos[""] = k.AuthInfos[c.AuthInfo].DeepCopy()
	}
	if err := clientcmd.ResolveLocalPaths(at); err != nil {
		return p, err
	}
	var mqtt struct{ Server string }
	if cluster := at.Clusters[""]; cluster != nil {
		p.Cluster = *cluster
		err = readExtension(cluster.Extensions, MQTTExtension, &mqtt)
	}
	if user := at.AuthInfos[""]; user != nil {
		p.AuthInfo = *user
		err = errors.Join(err, readExtension(user.Extensions, loginExtension, &p.Login))
	}
	err = errors.Join(err, readExtension(c.Extensions, MQTTExtension, &mqtt))
	p.MQTT = mqtt.Server
	return p, err
}

// readExtension decodes an extension. It leaves into as it is if there is none.
func readExtension(all map[string]runtime.Object, name string, into any) error {
	raw, ok := all[name].(*runtime.Unknown)
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw.Raw, into); err != nil {
		return fmt.Errorf("kubeconfig: extension %s: %w", name, err)
	}
	return nil
}

// setExtension changes an extension; nil removes it.
func setExtension(all *map[string]runtime.Object, name string, v any) error {
	if v == nil {
		delete(*all, name)
		return nil
	}
	text, err := json.Marshal(v)
	if *all == nil {
		*all = map[string]runtime.Object{}
	}
	(*all)[name] = &runtime.Unknown{Raw: text, ContentType: runtime.ContentTypeJSON}
	return err
}

func setMQTT(all *map[string]runtime.Object, server string) error {
	if server == "" {
		return setExtension(all, MQTTExtension, nil)
	}
	return setExtension(all, MQTTExtension, map[string]string{"server": server})
}

// context is a context, which is added if there is none of this name.
func (k *Kubeconfig) context(name string) *api.Context {
	if k.Contexts[name] == nil {
		k.Contexts[name] = api.NewContext()
	}
	return k.Contexts[name]
}

// clusterOf is the cluster of a context, which is added, by the context's name, if the context names none.
func (k *Kubeconfig) clusterOf(context string) *api.Cluster {
	c := k.context(context)
	c.Cluster = cmp.Or(c.Cluster, context)
	if k.Clusters[c.Cluster] == nil {
		k.Clusters[c.Cluster] = api.NewCluster()
	}
	return k.Clusters[c.Cluster]
}

// userOf is the user of a context, which is added, by the context's name, if the context names none.
func (k *Kubeconfig) userOf(context string) *api.AuthInfo {
	c := k.context(context)
	c.AuthInfo = cmp.Or(c.AuthInfo, context)
	if k.AuthInfos[c.AuthInfo] == nil {
		k.AuthInfos[c.AuthInfo] = api.NewAuthInfo()
	}
	return k.AuthInfos[c.AuthInfo]
}

// DeleteContext removes a context, and its cluster and user if no other context has them.
func (k *Kubeconfig) DeleteContext(name string) {
	gone := k.Contexts[name]
	delete(k.Contexts, name)
	others := slices.Collect(maps.Values(k.Contexts))
	if !slices.ContainsFunc(others, func(c *api.Context) bool { return c.Cluster == gone.Cluster }) {
		delete(k.Clusters, gone.Cluster)
	}
	if !slices.ContainsFunc(others, func(c *api.Context) bool { return c.AuthInfo == gone.AuthInfo }) {
		delete(k.AuthInfos, gone.AuthInfo)
	}
	if k.CurrentContext == name {
		k.CurrentContext = ""
	}
}

// StoreToken puts a token into the user of a context, and how to get the next one.
func (k *Kubeconfig) StoreToken(context, token string, how signin.Provider) error {
	u := k.userOf(context)
	u.Token, u.TokenFile = token, ""
	return setExtension(&u.Extensions, loginExtension, how)
}
