// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

// Command killedagent is edgeagent that is killed, with all of its process group, before a step: KILL_AT is the number of the step. With PAUSE_AT it
// waits once before the step of that name, while the file PAUSE, which it makes, is there.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/agent"
)

func main() {
	cfg, _, err := configs.Parse[configs.Agent]("edgeagent", daemon.Version(), os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	at, _ := strconv.Atoi(os.Getenv("KILL_AT"))
	var mu sync.Mutex
	steps, begun := 0, false
	var paused sync.Once
	os.Exit(daemon.Run("edgeagent", configs.Logger(os.Stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		return agent.Run(ctx, agent.Options{Config: cfg, Version: p.Version, Log: p.Log, Ready: p.Ready, BeforeStep: func(step string) {
			mu.Lock()
			defer mu.Unlock()
			if step == os.Getenv("PAUSE_AT") {
				paused.Do(func() { pauseAtStep(os.Getenv("PAUSE")) })
			}
			if begun = begun || step == "Downloading"; !begun {
				return
			}
			if steps++; steps == at {
				p.Log.Info().Str("before", step).Msg("the group is killed")
				_ = syscall.Kill(0, syscall.SIGKILL)
				select {}
			}
		}})
	}))
}

func pauseAtStep(file string) {
	err := os.WriteFile(file, nil, 0o600)
	for err == nil {
		time.Sleep(10 * time.Millisecond)
		_, err = os.Stat(file)
	}
}
