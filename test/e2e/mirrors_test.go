// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics/password"
)

// figure is one of a hub's metrics.
func (c *hubCluster) figure(h clusterHub, name string) int {
	text, err := harness.Call(c.t.Context(), http.MethodGet, "http://"+h.http+"/metrics", nil)
	require.NoError(c.t, err)
	found := regexp.MustCompile(`(?m)^` + name + ` (\d+)`).FindSubmatch(text)
	require.NotNil(c.t, found, name)
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

// awaitMirrored has the hubs that stand by have mirrors of what is at a path.
func (c *hubCluster) awaitMirrored(path string) {
	c.t.Helper()
	for _, h := range c.standBys() {
		before := c.figure(h, "edgebus_cluster_mirror_answers_total")
		c.eventually(func() error {
			_, err := harness.Call(c.t.Context(), http.MethodGet, "http://"+h.http+path, nil)
			if err == nil && c.figure(h, "edgebus_cluster_mirror_answers_total") == before {
				err = errors.New(h.name + " has the owner answer")
			}
			return err
		})
	}
}

type objectList struct {
	Metadata struct{ ResourceVersion, Continue string }
	Items    []mirroredObject
}

type mirroredObject struct {
	Metadata struct {
		Name, ResourceVersion string
		Labels                map[string]string
	}
	Code int
}

func listAt(ctx context.Context, url string) (list objectList, err error) {
	text, err := harness.Call(ctx, http.MethodGet, url, nil)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	return list, err
}

// informer follows the models by a hub, and goes on at the next one when its connection ends. All that it is told must fit what it has, except that it may be told
// of the deletion of what it never had: an object that was made and deleted while it didn't watch, at the hub that serves too.
type informer struct {
	c       *hubCluster
	at      int
	version string
	mu      sync.Mutex
	has     map[string]uint64 // revisions
	wrong   atomic.Pointer[string]
	gone    atomic.Int64
}

func (i *informer) run(ctx context.Context) {
	for ; ctx.Err() == nil; i.at++ {
		url := "http://" + i.c.hubs[i.at%3].http + modelsPath
		if i.version == "" {
			list, err := listAt(ctx, url)
			if err != nil {
				time.Sleep(20 * time.Millisecond) // a client's pace
				continue
			}
			i.mu.Lock()
			i.version, i.has = list.Metadata.ResourceVersion, map[string]uint64{}
			for _, o := range list.Items {
				i.has[o.Metadata.Name], _ = strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
			}
			i.mu.Unlock()
		}
		i.watch(ctx, url)
		time.Sleep(20 * time.Millisecond) // a client's pace
	}
}

func (i *informer) watch(ctx context.Context, url string) {
	ctx, stop := context.WithTimeout(ctx, 3*time.Second) // and then at the next hub
	defer stop()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"?watch=true&resourceVersion="+i.version, nil)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusGone {
		i.version = ""
		i.gone.Add(1)
	}
	if answer.StatusCode != http.StatusOK {
		return
	}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		var event struct {
			Type   string
			Object mirroredObject
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			return // cut
		}
		if event.Type == "ERROR" {
			if event.Object.Code == http.StatusGone {
				i.version = ""
				i.gone.Add(1)
			}
			return
		}
		i.take(event.Type, event.Object)
	}
}

func (i *informer) take(kind string, o mirroredObject) {
	i.mu.Lock()
	defer i.mu.Unlock()
	name := o.Metadata.Name
	rev, _ := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	had, is := i.has[name]
	if kind == "ADDED" && is || kind == "MODIFIED" && !is || rev <= had {
		text := fmt.Sprintf("%s %s at %d, of which it had %d", kind, name, rev, had)
		i.wrong.Store(&text)
	}
	i.version = o.Metadata.ResourceVersion
	if i.has[name] = rev; kind == "DELETED" {
		delete(i.has, name)
	}
}

// Lists and watches may be asked for at any hub, also while those are killed that serve: who has written reads that, whichever hub is asked; no value goes backwards;
// and watches that go on at another hub miss nothing.
func TestListsAndWatchesOfAnyHubAreOfNow(t *testing.T) {
	c := newHubCluster(t)
	c.awaitServing()
	c.awaitForwarding()
	url := func(h clusterHub) string { return "http://" + h.http + modelsPath }
	_, err := harness.Call(t.Context(), http.MethodPost, url(c.hubs[0]), mustRead(t, modelJSON("counter")))
	require.NoError(t, err)
	c.awaitMirrored(modelsPath)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	working, end := context.WithCancel(ctx)
	defer end()
	var work sync.WaitGroup
	var written, read, reads, turn atomic.Int64
	work.Go(func() { // the counter rises; others come and go
		for n := int64(1); working.Err() == nil; n++ {
			h := c.hubs[n%3]
			if _, err := harness.Call(working, http.MethodPatch, url(h)+"/counter", []byte(fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n))); err == nil {
				written.Store(n)
			}
			name := fmt.Sprint("model-", n%7)
			if _, err := harness.Call(working, http.MethodPost, url(h), mustRead(t, modelJSON(name))); err != nil {
				_, _ = harness.Call(working, http.MethodDelete, url(h)+"/"+name, nil)
			}
			time.Sleep(5 * time.Millisecond) // a user's pace
		}
	})
	for range 3 {
		work.Go(func() {
			for working.Err() == nil {
				least := max(written.Load(), read.Load())
				list, err := listAt(working, url(c.hubs[turn.Add(1)%3])+"?fieldSelector=metadata.name=counter")
				if err != nil || len(list.Items) != 1 {
					time.Sleep(20 * time.Millisecond) // a client's pace
					continue
				}
				n, _ := strconv.ParseInt(list.Items[0].Metadata.Labels["n"], 10, 64)
				if n < least {
					t.Errorf("a list has %d, after %d was written or read", n, least)
				}
				for had := read.Load(); n > had && !read.CompareAndSwap(had, n); had = read.Load() {
				}
				reads.Add(1)
			}
		})
	}
	var informers []*informer
	for i := range 3 {
		informers = append(informers, &informer{c: c, at: i})
		work.Go(func() { informers[i].run(ctx) })
	}
	more := func() {
		t.Helper()
		w, r := written.Load(), reads.Load()
		c.eventually(func() error {
			if written.Load() < w+20 || reads.Load() < r+50 {
				return errors.New("nothing goes on")
			}
			return nil
		})
	}
	more()
	for range 2 {
		owner := c.awaitServing()
		require.NoError(t, c.Crash(owner.name))
		c.awaitServing()
		more()
		c.start(owner)
		c.awaitMirrored(modelsPath)
		more()
	}
	end()
	serving := c.awaitServing()
	for _, i := range informers {
		c.eventually(func() error {
			list, err := listAt(ctx, url(serving)) // each time: a write whose client has left may come late
			if err != nil {
				return err
			}
			var names []string
			for _, o := range list.Items {
				names = append(names, o.Metadata.Name)
			}
			i.mu.Lock()
			defer i.mu.Unlock()
			if has := slices.Sorted(maps.Keys(i.has)); !slices.Equal(names, has) {
				return fmt.Errorf("watches have told of %q; at %s there are %q", has, list.Metadata.ResourceVersion, names)
			}
			return nil
		})
		if wrong := i.wrong.Load(); wrong != nil {
			t.Error("a watch told of", *wrong)
		}
		t.Log("lists anew:", i.gone.Load())
	}
	stop()
	work.Wait()
	t.Log(written.Load(), "writes,", reads.Load(), "lists")
}

func modelJSON(name string) io.Reader {
	return strings.NewReader(fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":%q},"spec":{"properties":[{"name":"level","type":"int","accessMode":"ReadWrite"}]}}`, name))
}

func mustRead(t *testing.T, r io.Reader) []byte {
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return text
}

// A hub that answers itself answers what the owner would: to nobody else, no more than may be seen, and no longer than a token is good. Pages go on at any hub.
func TestAMirrorShowsNobodyMore(t *testing.T) {
	hash := password.NewHash([]byte("secret"))
	users := "auth: {anonymous: loopback, users: ["
	for _, u := range []string{"name: op, role: operator, nodes: ['*']", "name: few, role: viewer, nodes: [n1]", "name: copier, role: follower"} {
		users += fmt.Sprintf("{%s, passwordHash: %q}, ", u, hash)
	}
	c := newHubCluster(t, func(settings string) string { return settings + users + "]}\n" })
	c.awaitServing()
	c.awaitForwarding()
	require.NoError(t, c.Apply(t.Context(), []byte(dial+"---\n"+strings.NewReplacer("name: d}", "name: e}", "nodeName: n1", "nodeName: n2").Replace(strings.Split(dial, "---")[1]))))
	const devicesPath = "/apis/edgebus.io/v1alpha1/namespaces/default/devices"
	c.awaitMirrored(devicesPath)
	ask := func(as string, h clusterHub, query string) (list objectList, err error) {
		c.eventually(func() error { // on a busy machine the log may not answer for a moment
			if list, err = listAt(t.Context(), "http://"+as+h.http+devicesPath+query); err != nil && strings.HasPrefix(err.Error(), "503") {
				return err
			}
			return nil
		})
		return list, err
	}
	for _, h := range c.hubs {
		for _, query := range []string{"", "?resourceVersion=0", "?resourceVersion=0&limit=1", "?resourceVersion=1", "?limit=500", "?watch=true&timeoutSeconds=1"} {
			_, err := ask("op:wrong@", h, query)
			require.ErrorContains(t, err, "401", h.name+query)
			_, err = ask("copier:secret@", h, query)
			require.ErrorContains(t, err, "403", h.name+query)
		}
		list, err := ask("op:secret@", h, "")
		require.NoError(t, err)
		require.Len(t, list.Items, 2)
		list, err = ask("few:secret@", h, "")
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		require.Equal(t, "d", list.Items[0].Metadata.Name)
		_, err = ask("", h, "?resourceVersion=99999999999999")
		require.ErrorContains(t, err, "Too large resource version")
		list, err = ask("", h, "?resourceVersion=0&limit=1")
		require.NoError(t, err)
		if h != c.awaitServing() {
			require.Len(t, list.Items, 2, "whatever is there has no pages")
		}
	}
	for i := range 3 {
		first, err := ask("", c.hubs[i], "?limit=1")
		require.NoError(t, err)
		rest, err := ask("", c.hubs[(i+1)%3], "?limit=1&continue="+first.Metadata.Continue)
		require.NoError(t, err)
		require.Equal(t, "d e", first.Items[0].Metadata.Name+" "+rest.Items[0].Metadata.Name)
	}

	text, err := harness.Call(t.Context(), http.MethodPost, "http://op:secret@"+c.hubs[0].http+"/tokens", []byte(`{"user":"x","role":"viewer","nodes":["*"],"ttl":"1h"}`))
	require.NoError(t, err)
	var token struct{ ID, Token string }
	require.NoError(t, json.Unmarshal(text, &token))
	watches := map[string]*http.Response{}
	for _, h := range c.hubs {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.http+devicesPath+"?watch=true", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token.Token)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode)
		watches[h.name] = answer
	}
	_, err = harness.Call(t.Context(), http.MethodDelete, "http://op:secret@"+c.standBys()[0].http+"/tokens/"+token.ID, nil)
	require.NoError(t, err)
	for name, answer := range watches {
		ended := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, answer.Body)
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("the watch goes on at", name)
		}
		_ = answer.Body.Close()
	}
}
