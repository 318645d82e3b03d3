package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud"
	"github.com/edgebus/edgebus/configs"
)

// roundTrip measures from a publish of a desired value on the hub to the reported
// value's arrival there, with a mapper that answers at once. Every hop commits:
// desired on the hub, desired on the node, reported on the node, reported on the hub.
func roundTrip(b bench) error {
	fmt.Fprintf(b.w, "One at a time: desired is published on the hub, a mapper on the node's broker answers at once, reported arrives on the hub.\n"+
		"There are four commits on the way; *4 commits* is a loop that makes four commits of one value in bbolt, one after the other.\n\n"+
		"| | p50 | p99 |\n|---|---|---|\n")
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	trips, err := trips(dir, b.d)
	if err != nil {
		return err
	}
	commits, err := fourCommits(dir, b.d)
	if err != nil {
		return err
	}
	one := quantile(commits, 0.5) / 4
	fmt.Fprintf(b.w, "| desired → reported | %s | %s |\n", round(quantile(trips, 0.5)), round(quantile(trips, 0.99)))
	fmt.Fprintf(b.w, "| 4 commits | %s | %s |\n", round(quantile(commits, 0.5)), round(quantile(commits, 0.99)))
	fmt.Fprintf(b.w, "\nA round trip takes %.1f times one commit (%s).\n", float64(quantile(trips, 0.5))/float64(one), round(one))
	return nil
}

func quantile(list []time.Duration, q float64) time.Duration {
	slices.Sort(list)
	return list[min(int(q*float64(len(list))), len(list)-1)]
}

func round(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func trips(dir string, d time.Duration) ([]time.Duration, error) {
	hub, err := startHub(filepath.Join(dir, "hub"))
	if err != nil {
		return nil, err
	}
	defer hub.stop() //nolint:errcheck // measured already
	if err := post(hub, "devicemodels", model(1)); err != nil {
		return nil, err
	}
	if err := post(hub, "devices", device(0)); err != nil {
		return nil, err
	}
	core, err := startCore(filepath.Join(dir, "core"), "mqtt://"+hub.mqtt.String())
	if err != nil {
		return nil, err
	}
	defer core.stop() //nolint:errcheck // measured already

	const desired, reported = "v1/nodes/n1/devices/d0/desired/p0", "v1/nodes/n1/devices/d0/reported/p0"
	var mapper *connection
	mapper, err = connect(core.mqtt, "mapper", func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: desired, QoS: 1}}
		o.OnMessage = func(m client.Message) {
			ver := client.UserProperty{Key: "for", Value: m.Property("ver")}
			mapper.PublishAsync(client.Message{Topic: reported, Payload: m.Payload, QoS: 1, User: []client.UserProperty{ver}}, nil)
		}
	})
	if err != nil {
		return nil, err
	}
	defer mapper.stop()
	arrived := make(chan string, 16)
	app, err := connect(hub.mqtt, "app", func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: reported, QoS: 1}}
		o.OnMessage = func(m client.Message) { arrived <- string(m.Payload) }
	})
	if err != nil {
		return nil, err
	}
	defer app.stop()
	return timeTrips(app, desired, arrived, d)
}

func timeTrips(app *connection, topic string, arrived <-chan string, d time.Duration) (list []time.Duration, err error) {
	const warmUp = 10
	for begin, i := time.Now(), 0; time.Since(begin) < d || i < 2*warmUp; i++ {
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
func fourCommits(dir string, d time.Duration) (list []time.Duration, err error) {
	db, err := bbolt.Open(filepath.Join(dir, "raw.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	for begin := time.Now(); time.Since(begin) < d; {
		start := time.Now()
		for i := range 4 {
			err := db.Update(func(tx *bbolt.Tx) error {
				values, err := tx.CreateBucketIfNotExists([]byte("values"))
				if err != nil {
					return err
				}
				return values.Put([]byte("key"), fmt.Appendf(nil, "%d %d", i, len(list)))
			})
			if err != nil {
				return nil, err
			}
		}
		list = append(list, time.Since(start))
	}
	return list, nil
}

func startHub(dir string) (*running, error) {
	cfg, err := configs.Load[configs.Hub]("cloudhub", "", nil)
	if err != nil {
		return nil, err
	}
	cfg.Data.Dir, cfg.MQTT.Listen, cfg.HTTP.Listen, cfg.MQTT.WebSocket.Listen = dir, "127.0.0.1:0", "127.0.0.1:0", ""
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan cloud.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- cloud.Run(ctx, cloud.Options{Config: cfg, Log: zerolog.Nop(), Started: func(a cloud.Addresses) { started <- a }})
	}()
	select {
	case a := <-started:
		return &running{mqtt: a.MQTT[0], http: a.HTTP[0], stop: func() error { cancel(); return <-ended }}, nil
	case err := <-ended:
		cancel()
		return nil, err
	}
}

func post(hub *running, plural string, v any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return err
	}
	url := "http://" + hub.http.String() + "/apis/edgebus.io/v1alpha1/namespaces/default/" + plural
	resp, err := http.Post(url, "application/json", bytes.NewReader(doc))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		var text strings.Builder
		_ = resp.Write(&text)
		return fmt.Errorf("creating in %s: %s", plural, text.String())
	}
	return nil
}
