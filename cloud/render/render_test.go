// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/render"
	"github.com/edgebus/edgebus/topics/resource"
)

// testLookups resolve two ConfigMaps and a Secret, and nothing else.
var testLookups = render.Lookups{
	ConfigMap: func(namespace, name string) (_ []render.ConfigMapValue, err error) {
		var m resource.ConfigMap
		switch namespace + "/" + name {
		case "default/motd":
			m.Data = map[string]string{"motd": "welcome\n", "issue": strings.Repeat("long ", 1000)}
			m.BinaryData = map[string][]byte{"logo": {0xff, 0, 1}}
		case "site/empty":
		default:
			err = resource.Errorf(resource.NotFound, "", "not found")
		}
		return render.ConfigMapValues(m), err
	},
	Secret: func(namespace, name string) (string, []string, error) {
		if namespace != "default" || name != "wifi" {
			return "", nil, resource.Errorf(resource.NotFound, "", "not found")
		}
		return "77", []string{"psk", "ca.crt"}, nil
	},
}

func inlineConfig(name, ignition string) resource.ConfigItem {
	return resource.ConfigItem{Name: name, ConfigType: resource.ConfigInline, Inline: json.RawMessage(ignition)}
}

func ignitionStorage(text string) string {
	return `{"ignition":{"version":"3.4.0"},"storage":{` + text + `}}`
}

func fileList(name string, files ...resource.InlineFile) resource.ConfigItem {
	return resource.ConfigItem{Name: name, ConfigType: resource.ConfigFiles, Files: files}
}

func gzipBase64(data []byte) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(data)
	_ = w.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// TestItemsOfEachTypeAreFiles: what items of each type come to, one file a row.
func TestItemsOfEachTypeAreFiles(t *testing.T) {
	long := strings.Repeat("0123456789", 200)
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte("hello\n")))
	digest := resource.DigestOf([]byte(long))
	mode := 0o600
	for name, c := range map[string]struct {
		item resource.ConfigItem
		want string // RenderedFile, in JSON
	}{
		"the file of the document": {
			inlineConfig("rendered-config", ignitionStorage(`"files":[{"contents":{"source":"data:,This%20system%20is%20managed%20by%20flightctl.%0A"},"mode":422,"overwrite":true,"path":"/etc/motd"}]`)),
			`{"path":"/etc/motd","type":"file","mode":"0646","text":"This system is managed by flightctl.\n"}`,
		},
		"base64":                      {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":true,"contents":{"source":"data:text/plain;charset=utf-8;base64,aGVsbG8K"}}]`)), `{"path":"/a","type":"file","mode":"0644","text":"hello\n"}`},
		"base64, percent-encoded":     {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":true,"contents":{"source":"data:;base64,aGVsbG8%3D"}}]`)), `{"path":"/a","type":"file","mode":"0644","text":"hello"}`},
		"a plus sign is no space":     {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":true,"contents":{"source":"data:,1+1"}}]`)), `{"path":"/a","type":"file","mode":"0644","text":"1+1"}`},
		"gzip and its hash":           {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":true,"contents":{"compression":"gzip","source":"data:;base64,`+gzipBase64([]byte("hello\n"))+`","verification":{"hash":"sha256-`+hash+`"}}}]`)), `{"path":"/a","type":"file","mode":"0644","text":"hello\n"}`},
		"no UTF-8":                    {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":true,"contents":{"source":"data:;base64,/w=="}}]`)), `{"path":"/a","type":"file","mode":"0644","base64":"/w=="}`},
		"long content":                {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":true,"contents":{"source":"data:,`+long+`"}}]`)), `{"path":"/a","type":"file","mode":"0644","digest":"` + digest + `","size":2000}`},
		"owner by id and by name":     {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":true,"user":{"id":1000},"group":{"name":"wheel"},"mode":2541}]`)), `{"path":"/a","type":"file","mode":"4755","user":"1000","group":"wheel"}`},
		"overwrite false keeps":       {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","overwrite":false,"contents":{"source":"data:,x"}}]`)), `{"path":"/a","type":"file","mode":"0644","keep":true,"text":"x"}`},
		"no source keeps":             {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a"}]`)), `{"path":"/a","type":"file","mode":"0644","keep":true}`},
		"no overwrite writes":         {inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","contents":{"source":"data:,x"}}]`)), `{"path":"/a","type":"file","mode":"0644","text":"x"}`},
		"a directory":                 {inlineConfig("c", ignitionStorage(`"directories":[{"path":"/srv/www","mode":448}]`)), `{"path":"/srv/www","type":"directory","mode":"0700"}`},
		"a link":                      {inlineConfig("c", ignitionStorage(`"links":[{"path":"/etc/localtime","target":"../usr/share/zoneinfo/UTC"}]`)), `{"path":"/etc/localtime","type":"link","target":"../usr/share/zoneinfo/UTC"}`},
		"an earlier version":          {inlineConfig("c", `{"ignition":{"version":"3.0.0"},"passwd":{},"storage":{"disks":[],"directories":[{"path":"/d"}]}}`), `{"path":"/d","type":"directory","mode":"0755"}`},
		"a unit":                      {inlineConfig("c", `{"ignition":{"version":"3.4.0"},"systemd":{"units":[{"name":"a.service","contents":"[Service]\n"}]}}`), `{"path":"/etc/systemd/system/a.service","type":"file","mode":"0644","text":"[Service]\n"}`},
		"a drop-in":                   {inlineConfig("c", `{"ignition":{"version":"3.4.0"},"systemd":{"units":[{"name":"sshd.service","dropins":[{"name":"10-a.conf","contents":"[Service]\n"}]}]}}`), `{"path":"/etc/systemd/system/sshd.service.d/10-a.conf","type":"file","mode":"0644","text":"[Service]\n"}`},
		"a masked unit":               {inlineConfig("c", `{"ignition":{"version":"3.4.0"},"systemd":{"units":[{"name":"a@b.timer","mask":true}]}}`), `{"path":"/etc/systemd/system/a@b.timer","type":"link","target":"/dev/null"}`},
		"a file of a list":            {fileList("l", resource.InlineFile{Path: "/a", Content: "aGk=", ContentEncoding: "base64", Mode: &mode, User: "app", Group: "7"}), `{"path":"/a","type":"file","mode":"0600","user":"app","group":"7","text":"hi"}`},
		"an empty file":               {fileList("l", resource.InlineFile{Path: "/a/b.c"}), `{"path":"/a/b.c","type":"file","mode":"0644"}`},
		"a Secret below the root":     {resource.ConfigItem{Name: "s", ConfigType: resource.ConfigSecret, SecretRef: &resource.SecretMount{Name: "wifi", MountPath: "/"}}, `{"path":"/psk","type":"file","mode":"0600","secret":{"name":"default.wifi","key":"psk","version":"77"}}`},
		"a ConfigMap's binary value":  {resource.ConfigItem{Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "motd", MountPath: "/etc/"}}, `{"path":"/etc/logo","type":"file","mode":"0644","base64":"/wAB"}`},
		"a ConfigMap's long value":    {resource.ConfigItem{Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "motd", Namespace: "default", MountPath: "/etc"}}, `{"path":"/etc/issue","type":"file","mode":"0644","digest":"` + resource.DigestOf([]byte(strings.Repeat("long ", 1000))) + `","size":5000}`},
		"an enabled unit's own link":  {enabledUnit, `{"path":"/etc/systemd/system/multi-user.target.wants/a.service","type":"link","target":"/etc/systemd/system/a.service"}`},
		"an enabled unit's alias":     {enabledUnit, `{"path":"/etc/systemd/system/b.service","type":"link","target":"/etc/systemd/system/a.service"}`},
		"an enabled unit's other way": {enabledUnit, `{"path":"/etc/systemd/system/graphical.target.requires/a.service","type":"link","target":"/etc/systemd/system/a.service"}`},
	} {
		t.Run(name, func(t *testing.T) {
			out, contents, err := render.Render(resource.NodeSpec{Config: []resource.ConfigItem{c.item}}, testLookups)
			if err != nil {
				t.Fatal(err)
			}
			var want resource.RenderedFile
			if err := json.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(out.Files, func(f resource.RenderedFile) bool { return f.Path == want.Path })
			if i < 0 || !reflect.DeepEqual(out.Files[i], want) {
				got, _ := json.Marshal(out.Files)
				t.Fatalf("got  %s\nwant %s", got, c.want)
			}
			if want.Digest != "" && (resource.DigestOf(contents[want.Digest]) != want.Digest || int64(len(contents[want.Digest])) != want.Size) {
				t.Fatalf("the content of %s is not there", want.Digest)
			}
		})
	}
}

var enabledUnit = inlineConfig("u", `{"ignition":{"version":"3.4.0"},"systemd":{"units":[{"name":"a.service","enabled":true,`+
	`"contents":"[Service]\nExecStart=/bin/true\n\n[Install]\n# a comment = x\nWantedBy=multi-user.target \\\n  timers.target\nRequiredBy = graphical.target\nAlias=b.service\n"}]}}`)

// TestProblemsSayWhatCannotBeRendered: what can't be rendered, with the reason and the words that the message must have.
func TestProblemsSayWhatCannotBeRendered(t *testing.T) {
	many := make([]resource.InlineFile, 0, 9)
	for i := range 9 {
		many = append(many, resource.InlineFile{Path: fmt.Sprint("/f", i), Content: strings.Repeat("x", 8<<20)})
	}
	var names []resource.InlineFile
	for i := range 5000 {
		names = append(names, resource.InlineFile{Path: fmt.Sprintf("/%0200d", i)})
	}
	bomb := gzipBase64(make([]byte, render.MaxFile+1))
	unit := func(text string) resource.ConfigItem {
		return inlineConfig("u", `{"ignition":{"version":"3.4.0"},"systemd":{"units":[`+text+`]}}`)
	}
	for name, c := range map[string]struct {
		items  []resource.ConfigItem
		reason string
		words  []string
	}{
		"two items, one path": {
			[]resource.ConfigItem{fileList("one", resource.InlineFile{Path: "/a", Content: "1"}), fileList("two", resource.InlineFile{Path: "/a", Content: "2"})},
			render.ReasonPathConflict,
			[]string{"spec.config[one]", "spec.config[two]", "/a"},
		},
		"one item, one path":  {[]resource.ConfigItem{inlineConfig("one", ignitionStorage(`"files":[{"path":"/a"},{"path":"/a","mode":0}]`))}, render.ReasonPathConflict, []string{"spec.config[one]", "/a twice"}},
		"below a file":        {[]resource.ConfigItem{fileList("one", resource.InlineFile{Path: "/a/b/c"}), fileList("two", resource.InlineFile{Path: "/a"})}, render.ReasonPathConflict, []string{"spec.config[one]", "spec.config[two]", "/a/b/c", "below /a"}},
		"below a link":        {[]resource.ConfigItem{inlineConfig("one", ignitionStorage(`"links":[{"path":"/a","target":"/b"}],"files":[{"path":"/a/b"}]`))}, render.ReasonPathConflict, []string{"below /a", "link"}},
		"a relative path":     {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"etc/motd"}]`))}, render.ReasonInvalid, []string{"spec.config[i]", `"etc/motd"`, "absolute"}},
		"a path with ..":      {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/etc/../root/x"}]`))}, render.ReasonInvalid, []string{"'..'"}},
		"the root":            {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"directories":[{"path":"/"}]`))}, render.ReasonInvalid, []string{"absolute"}},
		"a NUL":               {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a\u0000b"}]`))}, render.ReasonInvalid, []string{"NUL"}},
		"a long name":         {[]resource.ConfigItem{fileList("i", resource.InlineFile{Path: "/" + strings.Repeat("n", 256)})}, render.ReasonInvalid, []string{"255 bytes"}},
		"a long path":         {[]resource.ConfigItem{fileList("i", resource.InlineFile{Path: strings.Repeat("/n", 3000)})}, render.ReasonInvalid, []string{"4095 bytes"}},
		"no Ignition":         {[]resource.ConfigItem{inlineConfig("i", `[]`)}, render.ReasonInvalid, []string{"spec.config[i].inline"}},
		"an unknown field":    {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"filez":[]`))}, render.ReasonInvalid, []string{"filez"}},
		"no version":          {[]resource.ConfigItem{inlineConfig("i", `{"storage":{}}`)}, render.ReasonInvalid, []string{"ignition.version", "3.4.0"}},
		"a later version":     {[]resource.ConfigItem{inlineConfig("i", `{"ignition":{"version":"3.5.0"}}`)}, render.ReasonInvalid, []string{`"3.5.0"`}},
		"users":               {[]resource.ConfigItem{inlineConfig("i", `{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"core"}]}}`)}, render.ReasonNotSupported, []string{"passwd", "storage.files"}},
		"disks":               {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"disks":[{"device":"/dev/sda"}]`))}, render.ReasonNotSupported, []string{"storage.disks"}},
		"LUKS":                {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"luks":[{"name":"x"}]`))}, render.ReasonNotSupported, []string{"storage.luks"}},
		"append":              {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","append":[{"source":"data:,x"}]}]`))}, render.ReasonNotSupported, []string{"append", "whole content"}},
		"HTTP":                {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"source":"https://example.com/x"}}]`))}, render.ReasonNotSupported, []string{`"https"`, "data: URLs"}},
		"bzip2":               {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"compression":"bzip2","source":"data:,x"}}]`))}, render.ReasonNotSupported, []string{"bzip2", "gzip"}},
		"no gzip":             {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"compression":"gzip","source":"data:,x"}}]`))}, render.ReasonInvalid, []string{"/a", "not gzip"}},
		"a bomb":              {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"compression":"gzip","source":"data:;base64,`+bomb+`"}}]`))}, render.ReasonTooLarge, []string{"/a", fmt.Sprint(render.MaxFile)}},
		"another hash":        {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"source":"data:,x","verification":{"hash":"sha512-00"}}}]`))}, render.ReasonInvalid, []string{"/a", "hash sha512-00"}},
		"an unknown hash":     {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"source":"data:,x","verification":{"hash":"md5-00"}}}]`))}, render.ReasonInvalid, []string{"md5"}},
		"bad base64":          {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"source":"data:;base64,!"}}]`))}, render.ReasonInvalid, []string{"base64"}},
		"no comma":            {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"source":"data:x"}}]`))}, render.ReasonInvalid, []string{"comma"}},
		"bad percent":         {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","contents":{"source":"data:,%zz"}}]`))}, render.ReasonInvalid, []string{"decoded"}},
		"a mode":              {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","mode":4096}]`))}, render.ReasonInvalid, []string{"4096", "4095"}},
		"id and name":         {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","user":{"id":0,"name":"root"}}]`))}, render.ReasonInvalid, []string{"user of /a"}},
		"id below 0":          {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"files":[{"path":"/a","group":{"id":-1}}]`))}, render.ReasonInvalid, []string{"group of /a", "-1"}},
		"a hard link":         {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"links":[{"path":"/a","target":"/b","hard":true}]`))}, render.ReasonNotSupported, []string{"hard link"}},
		"a link to nothing":   {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"links":[{"path":"/a"}]`))}, render.ReasonInvalid, []string{"target"}},
		"directory overwrite": {[]resource.ConfigItem{inlineConfig("i", ignitionStorage(`"directories":[{"path":"/a","overwrite":true}]`))}, render.ReasonNotSupported, []string{"overwrite", "/a"}},
		"a unit's name":       {[]resource.ConfigItem{unit(`{"name":"../x.service"}`)}, render.ReasonInvalid, []string{"name of a unit"}},
		"a drop-in's name":    {[]resource.ConfigItem{unit(`{"name":"x.service","dropins":[{"name":"../../x.conf"}]}`)}, render.ReasonInvalid, []string{"drop-in"}},
		"a foreign unit":      {[]resource.ConfigItem{unit(`{"name":"sshd.service","enabled":true}`)}, render.ReasonNotSupported, []string{"enabled", "[Install]"}},
		"no Install":          {[]resource.ConfigItem{unit(`{"name":"x.service","enabled":true,"contents":"[Service]\nWantedBy=a.target\n"}`)}, render.ReasonInvalid, []string{"[Install]"}},
		"Install elsewhere":   {[]resource.ConfigItem{unit(`{"name":"x.service","enabled":true,"contents":"[Install]\nWantedBy=../../../x.target\n"}`)}, render.ReasonInvalid, []string{"no name of a unit"}},
		"Also":                {[]resource.ConfigItem{unit(`{"name":"x.service","enabled":true,"contents":"[Install]\nAlso=y.socket\n"}`)}, render.ReasonInvalid, []string{`"Also"`}},
		"mask and contents":   {[]resource.ConfigItem{unit(`{"name":"x.service","mask":true,"contents":""}`)}, render.ReasonInvalid, []string{"masked"}},
		"too large a file":    {[]resource.ConfigItem{fileList("l", resource.InlineFile{Path: "/a", Content: strings.Repeat("x", render.MaxFile+1)})}, render.ReasonTooLarge, []string{"/a", fmt.Sprint(render.MaxFile)}},
		"too large a node":    {[]resource.ConfigItem{fileList("l", many...)}, render.ReasonTooLarge, []string{"/f8", fmt.Sprint(render.MaxContents)}},
		"too large a spec":    {[]resource.ConfigItem{fileList("l", names...)}, render.ReasonTooLarge, []string{fmt.Sprint(render.MaxManifest)}},
		"missing references": {
			[]resource.ConfigItem{
				{Name: "a", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "gone", MountPath: "/a"}},
				{Name: "b", ConfigType: resource.ConfigSecret, SecretRef: &resource.SecretMount{Name: "wifi", Namespace: "other", MountPath: "/b"}},
			},
			render.ReasonNotFound,
			[]string{"spec.config[a]", "ConfigMap default/gone", "spec.config[b]", "Secret other/wifi"},
		},
		"git": {
			[]resource.ConfigItem{{Name: "g", ConfigType: resource.ConfigGit, GitRef: &resource.GitRef{Repository: "r", TargetRevision: "main", Path: "/"}}},
			render.ReasonNotRead,
			[]string{"spec.config[g]", "has not been read"},
		},
		"a mountPath": {
			[]resource.ConfigItem{{Name: "s", ConfigType: resource.ConfigSecret, SecretRef: &resource.SecretMount{Name: "wifi", MountPath: "/etc/../root"}}},
			render.ReasonInvalid,
			[]string{"spec.config[s]", "mountPath"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, contents, err := render.Render(resource.NodeSpec{Config: c.items}, testLookups)
			var p *render.Problem
			if !errors.As(err, &p) {
				t.Fatalf("%v is no problem; rendered %d files", err, len(out.Files))
			}
			if p.Reason != c.reason {
				t.Errorf("the reason is %s, not %s: %s", p.Reason, c.reason, p.Message)
			}
			for _, word := range c.words {
				if !strings.Contains(p.Message, word) {
					t.Errorf("%q doesn't say %q", p.Message, word)
				}
			}
			if len(p.Message) > 2000 {
				t.Errorf("the message has %d bytes", len(p.Message))
			}
			if contents != nil {
				t.Error("contents of what is not rendered")
			}
		})
	}
}

// TestALookupThatFailsIsTriedAgain: an error that is not NotFound is no condition, but tried again.
func TestALookupThatFailsIsTriedAgain(t *testing.T) {
	broken := errors.New("the store is closed")
	failing := render.Lookups{ConfigMap: func(string, string) ([]render.ConfigMapValue, error) { return nil, broken }}
	item := resource.ConfigItem{Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "m", MountPath: "/m"}}
	_, _, err := render.Render(resource.NodeSpec{Config: []resource.ConfigItem{item}}, failing)
	var p *render.Problem
	if !errors.Is(err, broken) || errors.As(err, &p) {
		t.Fatalf("%v", err)
	}
}

// TestTheRestOfASpecIsSentAsItIs: what a spec has besides files is sent as it is, applications in the order of their names.
func TestTheRestOfASpecIsSentAsItIs(t *testing.T) {
	spec := resource.NodeSpec{
		OS:    &resource.NodeOS{Image: "quay.io/x/y:1"},
		Hooks: &resource.Hooks{AfterUpdating: []resource.Hook{{Run: "reload"}}},
		Applications: []resource.Application{
			{Name: "web", AppType: resource.AppQuadlet, Files: []resource.InlineFile{{Path: "web.container", Content: "[Container]\n"}, {Path: "conf/a", Content: strings.Repeat("x", 2000)}}, EnvVars: map[string]string{"A": "1"}},
			{Name: "db", AppType: resource.AppCompose, Files: []resource.InlineFile{{Path: "compose.yaml", Content: "services: {}\n"}}},
		},
	}
	out, contents, err := render.Render(spec, render.Lookups{})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(out)
	want := `{"renderedVersion":"","os":{"image":"quay.io/x/y:1"},"applications":[` +
		`{"name":"db","appType":"compose","files":[{"path":"compose.yaml","type":"file","mode":"0644","text":"services: {}\n"}]},` +
		`{"name":"web","appType":"quadlet","files":[{"path":"conf/a","type":"file","mode":"0644","digest":"` + resource.DigestOf([]byte(strings.Repeat("x", 2000))) + `","size":2000},` +
		`{"path":"web.container","type":"file","mode":"0644","text":"[Container]\n"}],"envVars":{"A":"1"}}],` +
		`"hooks":{"afterUpdating":[{"run":"reload"}]},"drift":"restore"}`
	if string(got) != want || len(contents) != 1 {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	spec.Applications[0].Files[0].Path = "../web.container"
	if _, _, err = render.Render(spec, render.Lookups{}); err == nil || !strings.Contains(err.Error(), "spec.applications[web]") || !strings.Contains(err.Error(), "relative") {
		t.Errorf("a path out of the application's directory: %v", err)
	}
}

// TestOrderOfItems: for random sets of items that don't conflict, their order makes no difference, files are sorted and each
// path is there once; and what is rendered has the content that was given.
func TestOrderOfItems(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		want := map[string]string{}
		var items []resource.ConfigItem
		for i := range 1 + r.IntN(5) {
			var files []resource.InlineFile
			for range r.IntN(6) {
				at := fmt.Sprintf("/d%d/f%d", r.IntN(3), r.IntN(8))
				content := strings.Repeat(fmt.Sprint(r.IntN(2)), 1000+r.IntN(100))
				if old, there := want[at]; there {
					content = old
				}
				if slices.ContainsFunc(files, func(f resource.InlineFile) bool { return f.Path == at }) {
					continue
				}
				want[at] = content
				files = append(files, resource.InlineFile{Path: at, Content: content})
			}
			items = append(items, fileList(fmt.Sprint("i", i), files...))
		}
		one, contents, err := render.Render(resource.NodeSpec{Config: items}, testLookups)
		if err != nil {
			t.Fatal(seed, err)
		}
		r.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		two, _, err := render.Render(resource.NodeSpec{Config: items}, testLookups)
		if err != nil || !sameContent(one, two) {
			t.Fatalf("seed %d: another order gives another result: %v", seed, err)
		}
		checkSound(t, one, contents)
		if len(one.Files) != len(want) {
			t.Fatalf("seed %d: %d files of %d", seed, len(one.Files), len(want))
		}
		for _, f := range one.Files {
			if got := contentOf(f, contents); got != want[f.Path] {
				t.Fatalf("seed %d: %s has another content", seed, f.Path)
			}
		}
	}
}

func contentOf(f resource.RenderedFile, contents map[string][]byte) string {
	switch {
	case f.Digest != "":
		return string(contents[f.Digest])
	case f.Base64 != nil:
		return string(f.Base64)
	}
	return f.Text
}

// checkSound checks what holds for every rendered spec.
func checkSound(t *testing.T, out resource.RenderedSpec, contents map[string][]byte) {
	t.Helper()
	used := map[string]bool{}
	check := func(files []resource.RenderedFile, absolute bool) {
		types := map[string]string{}
		for i, f := range files {
			if i > 0 && files[i-1].Path >= f.Path {
				t.Fatalf("%q is not after %q", f.Path, files[i-1].Path)
			}
			if path.Clean(f.Path) != f.Path || path.IsAbs(f.Path) != absolute || slices.Contains(strings.Split(f.Path, "/"), "..") {
				t.Fatalf("the path %q is not clean", f.Path)
			}
			types[f.Path] = f.Type
			if f.Digest != "" {
				used[f.Digest] = true
				if resource.DigestOf(contents[f.Digest]) != f.Digest {
					t.Fatalf("the content of %q is not there", f.Path)
				}
			}
			if len(f.Text) > render.MaxInline || len(f.Base64) > render.MaxInline {
				t.Fatalf("%q is too long to be inline", f.Path)
			}
		}
		for at := range types {
			for dir := path.Dir(at); dir != "/" && dir != "."; dir = path.Dir(dir) {
				if kind := types[dir]; kind != "" && kind != resource.FileDirectory {
					t.Fatalf("%q is below the %s %q", at, kind, dir)
				}
			}
		}
	}
	check(out.Files, true)
	for _, a := range out.Applications {
		check(a.Files, false)
	}
	if len(used) > len(contents) {
		t.Fatalf("%d contents are referred to, of %d", len(used), len(contents))
	}
}

// FuzzRender: whatever a spec says, rendering ends with a sound result or with an error, and always the same one.
func FuzzRender(f *testing.F) {
	add := func(items ...resource.ConfigItem) {
		raw, err := json.Marshal(resource.NodeSpec{Config: items})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	add(inlineConfig("c", ignitionStorage(`"files":[{"path":"/a","contents":{"compression":"gzip","source":"data:;base64,`+gzipBase64([]byte("x"))+`"}}],"links":[{"path":"/b","target":"/a"}],"directories":[{"path":"/c"}]`)), enabledUnit)
	add(fileList("l", resource.InlineFile{Path: "/a", Content: "x"}), resource.ConfigItem{Name: "s", ConfigType: resource.ConfigSecret, SecretRef: &resource.SecretMount{Name: "wifi", MountPath: "/s"}})
	f.Add([]byte(`{"applications":[{"name":"a","files":[{"path":"x/y"},{"path":"x"}]}],"config":[{"configType":"ConfigMapProviderSpec","configMapRef":{"name":"motd"}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var spec resource.NodeSpec
		if json.Unmarshal(raw, &spec) != nil {
			return
		}
		out, contents, err := render.Render(spec, testLookups)
		again, _, err2 := render.Render(spec, testLookups)
		if (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() || !sameContent(out, again) {
			t.Fatalf("another result the second time: %v, %v", err, err2)
		}
		if err == nil {
			checkSound(t, out, contents)
		}
	})
}

func TestAFileOfAListMayBeABlob(t *testing.T) {
	digest := resource.DigestOf([]byte("somebody has put it"))
	out, contents, err := render.Render(resource.NodeSpec{Config: []resource.ConfigItem{
		fileList("l", resource.InlineFile{Path: "/a", Digest: digest, Size: 19}),
	}}, testLookups)
	if err != nil {
		t.Fatal(err)
	}
	want := resource.RenderedFile{Path: "/a", Type: resource.FileRegular, Mode: "0644", Content: resource.Content{Digest: digest, Size: 19}}
	if len(contents) != 0 || len(out.Files) != 1 || !reflect.DeepEqual(out.Files[0], want) {
		t.Fatalf("got %+v and %d contents", out.Files, len(contents))
	}
}

// A broker for which the spec has no room is left out, and smaller ones after it are not.
func TestBrokersThatDoNotFit(t *testing.T) {
	out, contents, err := render.Render(resource.NodeSpec{Config: []resource.ConfigItem{fileList("a", resource.InlineFile{Path: "/a", Content: "x"})}}, render.Lookups{})
	require.NoError(t, err)
	app := func(name string, size int) resource.Application {
		return resource.Application{
			Name: name, AppType: resource.AppQuadlet, EnvVars: map[string]string{"A": strings.Repeat("x", size)},
			Files: []resource.InlineFile{{Path: name + ".container", Content: strings.Repeat(name, render.MaxInline+1)}},
		}
	}
	leftOut, err := render.AddBrokers(&out, contents, []resource.Application{app("c", 1), app("a", render.MaxManifest/2), app("b", render.MaxManifest/2)})
	require.NoError(t, err)
	require.Len(t, leftOut, 1)
	require.Regexp(t, `^with it the rendered spec of the node has 10\d{5} bytes without the contents that travel apart; at most 1048576 are sent to a node$`, leftOut["b"])
	require.Len(t, out.Applications, 2)
	for i, name := range []string{"a", "c"} {
		require.Equal(t, name, out.Applications[i].Name)
		require.True(t, out.Applications[i].Optional)
		require.Contains(t, contents, out.Applications[i].Files[0].Digest)
	}
	require.Len(t, contents, 2)
	raw, err := json.Marshal(out)
	require.NoError(t, err)
	require.LessOrEqual(t, len(raw), render.MaxManifest)
}

func sameContent(a, b resource.RenderedSpec) bool {
	one, err1 := json.Marshal(a)
	two, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, two)
}
