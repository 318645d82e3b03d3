package access

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/signin"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kubeconfig is the files in which kubectl and edgebus keep clusters, users and contexts: those of $KUBECONFIG, else
// ~/.kube/config. The first file that has an entry wins, as for kubectl.
type Kubeconfig struct{ files []*kubeconfigFile }

// kubeconfigFile is one of the files. It is changed as a tree, so that fields and entries which edgebus doesn't know stay.
type kubeconfigFile struct {
	path    string
	text    []byte // as it was read; nil: there is no such file
	tree    map[string]any
	changed bool
}

// The kinds of entries. A file has a list of each kind, which is called as the kind in the plural.
const (
	kindCluster = "cluster"
	kindUser    = "user"
	kindContext = "context"
)

// Cluster is what edgebus reads of a cluster. Data takes precedence over the file.
type Cluster struct {
	Server     string               `json:"server,omitempty"`
	ServerName string               `json:"tls-server-name,omitempty"`
	Insecure   bool                 `json:"insecure-skip-tls-verify,omitempty"`
	CA         string               `json:"certificate-authority,omitempty"`
	CAData     []byte               `json:"certificate-authority-data,omitempty"`
	Proxy      string               `json:"proxy-url,omitempty"`
	Extensions kubeconfigExtensions `json:"extensions,omitempty"`
}

// Credentials is what edgebus reads of a user.
type Credentials struct {
	Cert      string `json:"client-certificate,omitempty"`
	CertData  []byte `json:"client-certificate-data,omitempty"`
	Key       string `json:"client-key,omitempty"`
	KeyData   []byte `json:"client-key-data,omitempty"`
	Token     string `json:"token,omitempty"`
	TokenFile string `json:"tokenFile,omitempty"`
	User      string `json:"username,omitempty"`
	Password  string `json:"password,omitempty"`

	// Fields that kubectl supports and edgebus doesn't.
	Exec         any    `json:"exec,omitempty"`
	AuthProvider any    `json:"auth-provider,omitempty"`
	As           string `json:"as,omitempty"`
}

// contextEntry is what edgebus reads of a context.
type contextEntry struct {
	Cluster    string               `json:"cluster"`
	User       string               `json:"user"`
	Namespace  string               `json:"namespace"`
	Extensions kubeconfigExtensions `json:"extensions"`
}

// kubeconfigExtensions is a list of fields that Kubernetes doesn't know. kubectl keeps them.
type kubeconfigExtensions []struct {
	Name      string          `json:"name"`
	Extension json.RawMessage `json:"extension"`
}

// MQTTExtension is the name of the extension of a cluster, or of a context, that holds the hub's MQTT address:
//
//	extensions:
//	- name: edgebus.io/mqtt
//	  extension: {server: "mqtts://hub.example.org:8883"}
const MQTTExtension = "edgebus.io/mqtt"

func (all kubeconfigExtensions) mqtt() (server string, err error) {
	var mqtt struct{ Server string }
	err = all.read(MQTTExtension, &mqtt)
	return mqtt.Server, err
}

// read decodes an extension. It leaves into as it is if there is none.
func (all kubeconfigExtensions) read(name string, into any) error {
	for _, e := range all {
		if e.Name != name {
			continue
		}
		if err := json.Unmarshal(e.Extension, into); err != nil {
			return fmt.Errorf("extension %s: %w", name, err)
		}
		break
	}
	return nil
}

// setMQTT changes the MQTT address of a cluster or context; an empty one is removed.
func setMQTT(cluster map[string]any, server string) {
	setExtension(cluster, MQTTExtension, map[string]any{"server": server}, server != "")
}

func setExtension(fields map[string]any, name string, v any, there bool) {
	all, _ := fields["extensions"].([]any)
	all = slices.DeleteFunc(all, func(e any) bool { return nameOf(e) == name })
	if there {
		all = append(all, map[string]any{"name": name, "extension": v})
	}
	setField(fields, "extensions", all, len(all) > 0)
}

// convertJSON converts a value between a Go type and the fields of a file.
func convertJSON(from, into any) error {
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

func setField(fields map[string]any, name string, v any, there bool) {
	fields[name] = v
	if !there {
		delete(fields, name)
	}
}

// ReadKubeconfig reads all files. One that doesn't exist has no entries.
func ReadKubeconfig() (*Kubeconfig, error) {
	var paths []string
	for _, path := range filepath.SplitList(os.Getenv("KUBECONFIG")) {
		if path != "" && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	if home, err := os.UserHomeDir(); err == nil && os.Getenv("KUBECONFIG") == "" {
		paths = append(paths, filepath.Join(home, ".kube", "config"))
	}
	k := &Kubeconfig{}
	for _, path := range paths {
		f, err := readConfigFile(path)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
		}
		k.files = append(k.files, f)
	}
	return k, nil
}

func readConfigFile(path string) (*kubeconfigFile, error) {
	f := &kubeconfigFile{path: path, tree: map[string]any{}}
	var err error
	if f.text, err = os.ReadFile(path); errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, errors.Unwrap(err) // without the path
	}
	text, err := yaml.YAMLToJSON(f.text)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&f.tree); err != nil {
		return nil, err
	}
	if f.tree == nil { // nothing but comments
		f.tree = map[string]any{}
	}
	for _, kind := range []string{kindCluster, kindUser, kindContext} {
		if _, ok := f.tree[kind+"s"].([]any); f.tree[kind+"s"] != nil && !ok {
			return nil, fmt.Errorf("%ss is not a list", kind)
		}
	}
	return f, nil
}

func nameOf(item any) string {
	fields, _ := item.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

// find finds an entry, and its file.
func (k *Kubeconfig) find(kind, name string) (*kubeconfigFile, map[string]any) {
	for _, f := range k.files {
		list, _ := f.tree[kind+"s"].([]any)
		if i := slices.IndexFunc(list, func(item any) bool { return nameOf(item) == name }); i >= 0 {
			return f, list[i].(map[string]any)
		}
	}
	return nil, nil
}

// read decodes an entry. found is false if no file has it.
func (k *Kubeconfig) read(kind, name string, into any) (f *kubeconfigFile, found bool, err error) {
	f, item := k.find(kind, name)
	if f == nil {
		return nil, false, nil
	}
	if err = convertJSON(item[kind], into); err != nil {
		err = fmt.Errorf("kubeconfig %s: %s %s: %w", f.path, kind, name, err)
	}
	return f, true, err
}

// change returns the fields of an entry, to be changed. If no file has it, it is added where kubectl would add it.
func (k *Kubeconfig) change(kind, name string) (map[string]any, error) {
	f, item := k.find(kind, name)
	if f == nil {
		var err error
		if f, err = k.fileForNewEntries(); err != nil {
			return nil, err
		}
		item = map[string]any{"name": name}
		list, _ := f.tree[kind+"s"].([]any)
		f.tree[kind+"s"] = append(list, item)
	}
	f.changed = true
	fields, _ := item[kind].(map[string]any)
	if fields == nil {
		fields = map[string]any{}
		item[kind] = fields
	}
	return fields, nil
}

// fileForNewEntries is the file for new entries: the first that exists, else the last.
func (k *Kubeconfig) fileForNewEntries() (*kubeconfigFile, error) {
	if len(k.files) == 0 {
		return nil, errors.New("there is no place for a kubeconfig: set HOME or KUBECONFIG")
	}
	if i := slices.IndexFunc(k.files, func(f *kubeconfigFile) bool { return f.text != nil }); i >= 0 {
		return k.files[i], nil
	}
	return k.files[len(k.files)-1], nil
}

// remove removes an entry.
func (k *Kubeconfig) remove(kind, name string) {
	if f, _ := k.find(kind, name); f != nil && name != "" {
		list, _ := f.tree[kind+"s"].([]any)
		f.tree[kind+"s"] = slices.DeleteFunc(list, func(item any) bool { return nameOf(item) == name })
		f.changed = true
	}
}

// Contexts are the names of all contexts, in their order.
func (k *Kubeconfig) Contexts() (names []string) {
	for _, f := range k.files {
		list, _ := f.tree[kindContext+"s"].([]any)
		for _, item := range list {
			names = append(names, nameOf(item))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Current is the name of the current context, or empty.
func (k *Kubeconfig) Current() string {
	for _, f := range k.files {
		if name, _ := f.tree["current-context"].(string); name != "" {
			return name
		}
	}
	return ""
}

// SetCurrent makes a context the current one. An empty name: no context is.
func (k *Kubeconfig) SetCurrent(name string) error {
	for _, f := range k.files {
		if was, _ := f.tree["current-context"].(string); was != "" && was != name {
			f.tree["current-context"], f.changed = "", true
		}
	}
	f, err := k.fileForNewEntries()
	if err == nil && name != "" {
		f.tree["current-context"], f.changed = name, true
	}
	return err
}

// Write writes the files that were changed.
func (k *Kubeconfig) Write() error {
	for _, f := range k.files {
		if !f.changed {
			continue
		}
		if err := f.write(); err != nil {
			return fmt.Errorf("kubeconfig %s: %w", f.path, err)
		}
	}
	return nil
}

// write replaces the file at once, readable by its owner only. It fails if another program has changed the file since it
// was read, or is about to: kubectl makes the same lock file.
func (f *kubeconfigFile) write() error {
	path := f.path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // the symbolic link stays
	}
	f.tree["apiVersion"], f.tree["kind"] = "v1", "Config"
	text, err := yaml.Marshal(f.tree)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_EXCL, 0)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("another program is writing it; if none is, remove %s.lock", f.path)
	}
	if err != nil {
		return err
	}
	_ = lock.Close()
	defer os.Remove(lock.Name())
	if now, err := os.ReadFile(path); err == nil && !bytes.Equal(now, f.text) {
		return errors.New("another program has changed it meanwhile: try again")
	}
	next, err := os.CreateTemp(filepath.Dir(path), ".config-") // 0600
	if err != nil {
		return err
	}
	_, err = next.Write(text)
	if err = errors.Join(err, next.Sync(), next.Close()); err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

func (k *Kubeconfig) ErrNoContext(name string) error {
	return exitcode.Errorf(exitcode.NotFound, "there is no context %s: edgebus context list shows those that there are, edgebus context set %s --server https://… adds it%s",
		name, name, resource.DidYouMean(name, k.Contexts()))
}

// TargetOf is the hub that a context names, and the credentials for it.
func (k *Kubeconfig) TargetOf(name string) (p Target, err error) {
	var c contextEntry
	_, found, err := k.read(kindContext, name, &c)
	if !found {
		return p, k.ErrNoContext(name)
	}
	if err != nil {
		return p, err
	}
	p.Namespace = c.Namespace
	for _, ref := range []struct {
		kind, name string
		into       any
		files      []*string
	}{
		{kindCluster, c.Cluster, &p.Cluster, []*string{&p.CA}},
		{kindUser, c.User, &p.Credentials, []*string{&p.Cert, &p.Key, &p.TokenFile}},
	} {
		if ref.name == "" {
			continue
		}
		f, found, err := k.read(ref.kind, ref.name, ref.into)
		if !found {
			return p, exitcode.Errorf(exitcode.NotFound, "context %s names the %s %s, which the kubeconfig doesn't have", name, ref.kind, ref.name)
		}
		if err != nil {
			return p, err
		}
		for _, path := range ref.files {
			if *path != "" && !filepath.IsAbs(*path) { // it is beside the kubeconfig
				*path = filepath.Join(filepath.Dir(f.path), *path)
			}
		}
	}
	if c.User != "" {
		var login struct {
			Extensions kubeconfigExtensions `json:"extensions"`
		}
		if _, _, err := k.read(kindUser, c.User, &login); err != nil {
			return p, err
		}
		if err := login.Extensions.read(loginExtension, &p.Login); err != nil {
			return p, err
		}
	}
	for _, e := range []kubeconfigExtensions{c.Extensions, p.Extensions} {
		if p.MQTT == "" && err == nil {
			p.MQTT, err = e.mqtt()
		}
	}
	return p, err
}

// entryNames are the names of a context and of its cluster and user, which are called as the context if it names none.
func (k *Kubeconfig) entryNames(context string) (map[string]string, error) {
	var c contextEntry
	_, _, err := k.read(kindContext, context, &c)
	return map[string]string{kindContext: context, kindCluster: cmp.Or(c.Cluster, context), kindUser: cmp.Or(c.User, context)}, err
}

// DeleteContext removes a context, and its cluster and user if no other context has them.
func (k *Kubeconfig) DeleteContext(context string) error {
	var c contextEntry
	if _, _, err := k.read(kindContext, context, &c); err != nil {
		return err
	}
	k.remove(kindContext, context)
	clusterUsed, userUsed := false, false
	for _, other := range k.Contexts() {
		var o contextEntry
		if _, _, err := k.read(kindContext, other, &o); err != nil {
			return err
		}
		clusterUsed, userUsed = clusterUsed || o.Cluster == c.Cluster, userUsed || o.User == c.User
	}
	if !clusterUsed {
		k.remove(kindCluster, c.Cluster)
	}
	if !userUsed {
		k.remove(kindUser, c.User)
	}
	if k.Current() == context {
		return k.SetCurrent("")
	}
	return nil
}

// loginExtension is the name of the extension of a user that holds how its token was got, and how to get the next one.
const loginExtension = "edgebus.io/oidc"

// StoreToken writes the token into the user of a context.
func (k *Kubeconfig) StoreToken(context, token string, how signin.Provider) error {
	names, err := k.entryNames(context)
	if err != nil {
		return err
	}
	c, err := k.change(kindContext, context)
	if err != nil {
		return err
	}
	u, err := k.change(kindUser, names[kindUser])
	if err != nil {
		return err
	}
	c[kindUser], u["token"] = names[kindUser], token
	delete(u, "tokenFile")
	setExtension(u, loginExtension, how, true)
	return k.Write()
}
