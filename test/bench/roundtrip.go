// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	tripEvery = 10 * time.Millisecond
	tripSlack = 2 * time.Millisecond // that a round trip may take beyond its commits
)

// measureRoundTrip measures from a publish of a desired value on the hub to the reported
// value's arrival there, with a mapper that answers at once. Every hop commits:
// desired on the hub, desired on the node, reported on the node, reported on the hub.
func measureRoundTrip(b benchRun) error {
	fmt.Fprintf(b.w, "A hundred a second: desired is published on the hub, a mapper on the node's broker answers at once, reported arrives\n"+
		"on the hub. Hub and core run as they are shipped. There are four commits on the way; *4 commits* is a loop that makes\n"+
		"four commits of one value in bbolt, one after the other, a hundred times a second.\n\n"+
		"| | p50 | p99 |\n|---|---|---|\n")
	var took, commits []time.Duration
	for range b.rounds {
		t, err := measureTrips(b)
		if err != nil {
			return err
		}
		c, err := fourCommits(b.d)
		if err != nil {
			return err
		}
		took, commits = append(took, t...), append(commits, c...)
	}
	p50, p99 := quantile(took, 0.5), quantile(took, 0.99)
	c50, c99 := quantile(commits, 0.5), quantile(commits, 0.99)
	fmt.Fprintf(b.w, "| desired → reported | %s | %s |\n", formatDuration(p50), formatDuration(p99))
	fmt.Fprintf(b.w, "| 4 commits | %s | %s |\n", formatDuration(c50), formatDuration(c99))
	fmt.Fprintf(b.w, "\nAims: p50 below four commits and %s, %s: %s. p99 below twice that of the loop, %s: %s.\n",
		tripSlack, formatDuration(c50+tripSlack), aimText(p50 < c50+tripSlack), formatDuration(2*c99), aimText(p99 < 2*c99))
	return nil
}

// aimText says whether an aim was met.
func aimText(aim bool) string {
	if aim {
		return "met"
	}
	return "**missed**"
}

func quantile(list []time.Duration, q float64) time.Duration {
	slices.Sort(list)
	return list[min(int(q*float64(len(list))), len(list)-1)]
}

func formatDuration(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func measureTrips(b benchRun) ([]time.Duration, error) {
	hub, web, err := hubWithAPI(b)
	if err != nil {
		return nil, err
	}
	defer hub.stop()
	return tripsAt(b, hub.addr, web, true)
}

// tripsAt measures trips over a hub that runs. create: it has no Device yet.
func tripsAt(b benchRun, addr, web string, create bool) ([]time.Duration, error) {
	if create {
		if err := postObject(web, "devicemodels", benchModel(1)); err != nil {
			return nil, err
		}
		if err := postObject(web, "devices", benchDevice(0)); err != nil {
			return nil, err
		}
	}
	core, err := startProgram(filepath.Join(b.bin, "edgecore"), "", "--node-name", "n1", "--link-server", "mqtt://"+addr)
	if err != nil {
		return nil, err
	}
	defer core.stop()

	const desired, reported = "v1/nodes/n1/devices/d0/desired/p0", "v1/nodes/n1/devices/d0/reported/p0"
	var connected atomic.Pointer[clientConnection]
	mapper, err := connectClient(core.addr, "mapper", func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: desired, QoS: 1}}
		o.OnMessage = func(m client.Message) {
			c := connected.Load()
			if c == nil {
				return // a value of the round before
			}
			ver := client.UserProperty{Key: "for", Value: m.Property("ver")}
			c.PublishAsync(client.Message{Topic: reported, Payload: m.Payload, QoS: 1, User: []client.UserProperty{ver}}, nil)
		}
	})
	if err != nil {
		return nil, err
	}
	defer mapper.stop()
	connected.Store(mapper)
	arrived := make(chan string, 16)
	app, err := connectClient(addr, "app", func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: reported, QoS: 1}}
		o.OnMessage = func(m client.Message) { arrived <- string(m.Payload) }
	})
	if err != nil {
		return nil, err
	}
	defer app.stop()
	return timeTrips(app, desired, arrived, b.d)
}

func timeTrips(app *clientConnection, topic string, arrived <-chan string, d time.Duration) (list []time.Duration, err error) {
	const warmUp = 20
	for begin, i := time.Now(), 0; time.Since(begin) < d || i < 2*warmUp; i++ {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * tripEvery)))
		want, sent := strconv.Itoa(i), time.Now()
		app.PublishAsync(client.Message{Topic: topic, Payload: []byte(want), QoS: 1}, nil)
		for got := ""; got != want; {
			select {
			case got = <-arrived:
			case <-time.After(30 * time.Second):
				return nil, fmt.Errorf("round trip %d: nothing came back", i)
			}
		}
		if i >= warmUp {
			list = append(list, time.Since(sent))
		}
	}
	return list, nil
}

// fourCommits is the least that a durable round trip can take.
func fourCommits(d time.Duration) (list []time.Duration, err error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	db, err := bbolt.Open(filepath.Join(dir, "raw.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	for begin, n := time.Now(), 0; time.Since(begin) < d; n++ {
		time.Sleep(time.Until(begin.Add(time.Duration(n) * tripEvery)))
		start := time.Now()
		for i := range 4 {
			err := db.Update(func(tx *bbolt.Tx) error {
				values, err := tx.CreateBucketIfNotExists([]byte("values"))
				if err != nil {
					return err
				}
				return values.Put([]byte("key"), fmt.Appendf(nil, "%d %d", i, n))
			})
			if err != nil {
				return nil, err
			}
		}
		list = append(list, time.Since(start))
	}
	return list, nil
}

// hubWithAPI starts a hub as it is shipped; web is the address of its HTTP API.
func hubWithAPI(b benchRun) (hub *benchProcess, web string, err error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return nil, "", err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	if web, err = freeAddress(); err != nil {
		return nil, "", err
	}
	hub, err = startBroker(dir, addr, "", filepath.Join(b.bin, "cloudhub"), "--data-dir", dir, "--mqtt-listen", addr,
		"--mqtt-websocket-listen", "", "--http-listen", web)
	if err != nil {
		return nil, "", err
	}
	return hub, web, awaitReady("http://" + web + "/readyz")
}

func postObject(web, plural string, v any) error {
	_, err := createdUID(web, plural, v)
	return err
}

// createdUID creates an object, and returns the UID that the hub has given it.
func createdUID(web, plural string, v any) (string, error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	url := "http://" + web + "/apis/edgebus.io/v1alpha1/namespaces/default/" + plural
	resp, err := http.Post(url, "application/json", bytes.NewReader(doc))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		var text strings.Builder
		_ = resp.Write(&text)
		return "", fmt.Errorf("creating in %s: %s", plural, text.String())
	}
	var created struct{ Metadata resource.Meta }
	if err := json.NewDecoder(resp.Body).Decode(&created); err != nil {
		return "", err
	}
	_, err = io.Copy(io.Discard, resp.Body) // or the connection isn't used again
	return created.Metadata.UID, err
}
