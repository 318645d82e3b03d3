// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/test/flood"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	attackedDevices = 4000
	attackPassword  = "not a secret"
	attackAim       = 3.0 // times the calm p99
	attackInterval  = 50 * time.Millisecond
)

// measureAttacks measures what an honest pair notices of somebody who holds one credential, or none.
func measureAttacks(b benchRun) error {
	if err := raiseFileLimit(); err != nil {
		return err
	}
	cpu, unpin, err := pinCPU()
	if err != nil {
		return err
	}
	defer unpin()
	fmt.Fprintf(b.w, "An operator sets a desired value a hundred times a second (*acknowledged*: when it is on disk), publishes as often at QoS 1 to a\n"+
		"subscriber (*arrives*), signs in with a password ten times a second (*CONNACK*) and gets a Device by HTTP as often (*GET*). Beside it somebody who\n"+
		"holds the credential that is named, or none, does what the row says, with all strength. Limits are as shipped; the hub has %d Devices. The program has one core, the\n"+
		"pair and the attacker the other, the attacker at a lower priority. Each cell is the p99 before, during and right after the attack, medians of\n"+
		"%d runs of %s each. Whoever waits while several requests were due waited in all of them. The memory (RssAnon) is that before, the most at any time, and that\n"+
		"at the end. Aim: during the attack the p99 of *acknowledged* and *arrives* is below %.0f times that before; values that are not below are bold.\n",
		attackedDevices, b.rounds, b.d, attackAim)
	for _, target := range []struct {
		name  string
		open  func(benchRun, string) (*attackedProgram, error)
		names []string // empty: all
	}{
		{"cloudhub", attackedHub, []string{"fulls", "names", "unfinished", "guesses", "refusals", "identifiers", "lists", "openapi", "pages"}},
		{"edgecore", attackedCore, []string{"names", "unfinished", "guesses", "agent", "refusals", "identifiers"}},
	} {
		first := true
		for _, f := range flood.Attacks() {
			if !slices.Contains(target.names, f.Name) || !strings.Contains(target.name+" "+f.Name, b.chosen) {
				continue
			}
			a, err := target.open(b, cpu)
			if err != nil {
				return fmt.Errorf("%s: %w", target.name, err)
			}
			if first {
				a.attackHeader(b, target.name)
				first = false
			}
			err = a.suffer(b, f)
			a.close()
			if err != nil {
				return fmt.Errorf("%s, %s: %w", target.name, f.Name, err)
			}
		}
	}
	return nil
}

// attackedProgram is a program with an honest pair.
type attackedProgram struct {
	*neighbourProcess
	honest []honestRequest
}

// honestRequest is what the pair does again and again.
type honestRequest struct {
	what  string
	every time.Duration
	trip  func() (time.Duration, error)
	aim   bool // it has one
}

// attackUsers are those of the settings: the pair's, and one for each attacker's credential.
func attackUsers(roles ...string) string {
	text := "auth:\n  anonymous: loopback\n  users:\n"
	hash := password.NewHash([]byte(attackPassword))
	for i := 0; i < len(roles); i += 2 {
		text += fmt.Sprintf("    - {name: %s, role: %s, nodes: [\"*\"], passwordHash: '%s'}\n", roles[i], roles[i+1], hash)
	}
	return text
}

func attackedHub(b benchRun, cpu string) (*attackedProgram, error) {
	settings := attackUsers("app", "operator", "other", "viewer") + strings.ReplaceAll(strings.SplitAfter(attackUsers("n3", "node"), "users:\n")[1], " nodes: [\"*\"],", "")
	return openAttacked(b, "cloudhub", cpu, settings, makeAttackedObjects)
}

func attackedCore(b benchRun, cpu string) (*attackedProgram, error) {
	settings := strings.ReplaceAll(attackUsers("app", "operator", "other", "mapper"), " nodes: [\"*\"],", "")
	return openAttacked(b, "edgecore", cpu, settings, func(dir string) error { return seedCore(dir, 1, 1) }, "--node-name", "n1", "--link-server", "")
}

func openAttacked(b benchRun, program, cpu, settings string, prepare func(dir string) error, args ...string) (*attackedProgram, error) {
	file := filepath.Join(os.TempDir(), fmt.Sprintf("edgebus-bench-%d.yaml", os.Getpid()))
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	defer os.Remove(file)
	n, err := openNeighbourhood(filepath.Join(b.bin, program), cpu, prepare, append([]string{"--config", file}, args...)...)
	if err != nil {
		return nil, err
	}
	n.user, n.password = "app", attackPassword
	n.target.User, n.target.Other, n.target.Node, n.target.Password = "app", "other", "n3", attackPassword
	a := &attackedProgram{neighbourProcess: n}
	err = awaitReady("http://" + n.target.HTTP + "/readyz")
	if err == nil {
		err = a.settleIn()
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return a, nil
}

func makeAttackedObjects(dir string) error {
	st, err := disk.Open(disk.Options{Path: filepath.Join(dir, hubdata.LogDir)})
	if err != nil {
		return err
	}
	m := benchModel(1)
	m.Metadata.Namespace = resource.DefaultNamespace
	err = createObject(st, resource.KindDeviceModel, "bench", m)
	for _, name := range []string{"n1", "n2", "n3"} {
		err = errors.Join(err, createObject(st, resource.KindNode, name, resource.Node{Metadata: resource.Meta{Name: name, UID: resource.NewUID(), Generation: 1}}))
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, 256) // that share commits
	var mu sync.Mutex
	for i := range attackedDevices {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			d := benchDevice(i)
			d.Metadata.Namespace, d.Metadata.UID, d.Metadata.Generation = resource.DefaultNamespace, resource.NewUID(), 1
			if i > 0 {
				d.Spec.NodeName = "n2"
			}
			if i%100 == 0 {
				d.Metadata.Labels = map[string]string{"a": "b"}
			}
			made := createObject(st, resource.KindDevice, d.Metadata.Name, d)
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, made)
		})
	}
	all.Wait()
	return errors.Join(err, st.Close())
}

// settleIn connects the pair.
func (a *attackedProgram) settleIn() error {
	tree, err := a.pinger("app-tree", "v1/nodes/n1/devices/d0/desired/p0", []byte("1"), "")
	if err != nil {
		return err
	}
	own, err := a.pinger("app-own", "plant/app", make([]byte, payloadSize), "plant/app")
	if err != nil {
		return err
	}
	for range 500 { // a device's Node may not have it yet
		if _, err = tree.trip(); err == nil {
			break
		}
		time.Sleep(treeEvery)
	}
	if err != nil {
		return fmt.Errorf("the tree takes no values: %w", err)
	}
	a.honest = []honestRequest{
		{"acknowledged", treeEvery, tree.trip, true},
		{"arrives", treeEvery, own.trip, true},
		{"CONNACK", ownEvery, a.signIn, false},
		{"GET", ownEvery, a.get, false},
	}
	return nil
}

func (a *attackedProgram) signIn() (time.Duration, error) {
	began := time.Now()
	c, err := dialWith(a.addr, "app-signs-in", a.user, a.password)
	if err != nil {
		return 0, err
	}
	return time.Since(began), c.Close()
}

func (a *attackedProgram) get() (time.Duration, error) {
	began := time.Now()
	r, err := http.NewRequest(http.MethodGet, "http://"+a.target.HTTP+objectsPath+"/d0", nil)
	if err != nil {
		return 0, err
	}
	r.SetBasicAuth(a.user, a.password)
	resp, err := (&http.Client{Timeout: tripTimeout}).Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET: %s: %.200s", resp.Status, text)
	}
	return time.Since(began), err
}

// attackPhase is what the pair saw in one part of a run, and the program's memory.
type attackPhase struct {
	p99  []float64 // seconds, by request
	most float64   // MB
}

// live has the pair go about its business for a while.
func (a *attackedProgram) live(d time.Duration) (p attackPhase, err error) {
	p.p99 = make([]float64, len(a.honest))
	errs := make([]error, len(a.honest))
	var all sync.WaitGroup
	for i, r := range a.honest {
		all.Go(func() {
			waits, err := r.steadily(d)
			if errs[i] = err; err == nil {
				p.p99[i] = quantile(waits, 0.99).Seconds()
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-time.After(attackInterval):
		}
		now, err := anonymousMemory(a.pid)
		if err != nil {
			return p, errors.Join(append(errs, fmt.Errorf("the program has ended: %w", err))...)
		}
		p.most = max(p.most, now)
	}
	return p, errors.Join(errs...)
}

// steadily does it as often as it is due. What became due while one was waited for has waited as well.
func (r honestRequest) steadily(d time.Duration) (waits []time.Duration, err error) {
	began := time.Now()
	for due := time.Duration(0); due < d; due += r.every {
		time.Sleep(time.Until(began.Add(due)))
		took, err := r.trip()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.what, err)
		}
		waits = append(waits, took)
		for ; due+r.every < time.Since(began); due += r.every {
			waits = append(waits, time.Since(began)-due-r.every)
		}
	}
	return waits, nil
}

func (a *attackedProgram) attackHeader(b benchRun, name string) {
	columns, rule := "", ""
	for _, r := range a.honest {
		columns += " | " + r.what
		rule += "|---"
	}
	fmt.Fprintf(b.w, "\n**%s**\n\n| who does what%s | memory, MB | aim |\n|---%s|---|---|\n", name, columns, rule)
}

// suffer lets an attack loose on the program and takes it away again, several times.
func (a *attackedProgram) suffer(b benchRun, f flood.Flood) error {
	if err := settledMemory(a.pid); err != nil {
		return err
	}
	var phases [3][]attackPhase // before, during and after
	live := func(i int) error {
		p, err := a.live(b.d)
		phases[i] = append(phases[i], p)
		return err
	}
	var failed error
	for range b.rounds {
		if err := live(0); err != nil {
			return err
		}
		end, err := a.unleash(f.Name, a.target)
		if err != nil {
			return err
		}
		time.Sleep(floodOnset)
		err = live(1)
		end()
		if err == nil {
			err = live(2)
		}
		if failed = err; failed != nil {
			break
		}
		time.Sleep(floodOnset)
	}
	if failed != nil {
		fmt.Fprintf(b.w, "| %s |%s | | **missed**: %v |\n", f.What, strings.Repeat(" |", len(a.honest)), failed)
		return nil
	}
	row, aim := []string{f.What}, true
	for i, r := range a.honest {
		var p99 [3]float64
		for part, list := range phases {
			var all []float64
			for _, p := range list {
				all = append(all, p.p99[i])
			}
			p99[part] = median(all)
		}
		texts := [3]string{}
		for part := range p99 {
			texts[part] = formatDuration(time.Duration(p99[part] * 1e9))
		}
		if p99[1] >= attackAim*p99[0] {
			texts[1] = "**" + texts[1] + "**"
			aim = aim && !r.aim
		}
		row = append(row, strings.Join(texts[:], ", "))
	}
	end, err := anonymousMemory(a.pid)
	if err != nil {
		return err
	}
	most := 0.0
	for _, list := range phases {
		for _, p := range list {
			most = max(most, p.most)
		}
	}
	row = append(row, fmt.Sprintf("%.0f, %.0f, %.0f", phases[0][0].most, most, end), aimText(aim))
	fmt.Fprintf(b.w, "| %s |\n", strings.Join(row, " | "))
	return nil
}

// settledMemory waits until the program's memory doesn't grow any more after its start.
func settledMemory(pid int) error {
	last := -1.0
	for range 20 {
		time.Sleep(floodOnset)
		now, err := anonymousMemory(pid)
		if err != nil {
			return err
		}
		if now <= last+0.5 {
			return nil
		}
		last = now
	}
	return nil
}
