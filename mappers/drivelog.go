// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// driveLog is the file of Options.DriveLog. Each line is one write, so that lines of several processes don't mix.
type driveLog struct{ f *os.File }

// driveLine is one line of it: a write, or a command.
type driveLine struct {
	Device   string `json:"device"`
	Property string `json:"property,omitempty"`
	Command  string `json:"command,omitempty"`
	Value    string `json:"value"`
	Ver      uint64 `json:"ver,omitempty"`
	Time     string `json:"time"`
}

func openDriveLog(name string) (*driveLog, error) {
	if name == "" {
		return &driveLog{}, nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // G302: a log of drives, for other users to read
	if err != nil {
		return nil, fmt.Errorf("drive log: %w", err)
	}
	return &driveLog{f}, nil
}

func (l *driveLog) close() {
	if l.f != nil {
		_ = l.f.Close()
	}
}

func (l *driveLog) add(d driveLine, now time.Time) error {
	if l.f == nil {
		return nil
	}
	d.Time = resource.FormatTime(now)
	line, err := json.Marshal(d)
	if err == nil {
		_, err = l.f.Write(append(line, '\n'))
	}
	return err
}
