package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/configs/daemon/datadir"
)

// What runs gives its data over a socket in its data directory: who may read the data may ask for it.
const (
	// SocketName is the socket's name in the data directory.
	SocketName = "backup.sock"

	backupURL   = "http://edgebus/backup"
	sizeHeader  = "Edgebus-Size"
	errorHeader = "Edgebus-Error" // a trailer: what went wrong midway
	silence     = time.Minute     // of the other side, after which it is given up
)

// running has the program that uses the directory write a backup, not compressed.
func (l *line) running(w io.Writer, used *datadir.InUse) error {
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, backupURL, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: l.dial}}
	res, err := client.Do(req)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s gives no backup (it may be about to start or to end: try again). %w", used.Holder, used)
	case err != nil:
		return fmt.Errorf("%s gives no backup: %w", used.Holder, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return fmt.Errorf("%s gives no backup: %s", used.Holder, strings.TrimSpace(string(text)))
	}
	size, _ := strconv.ParseInt(res.Header.Get(sizeHeader), 10, 64) // for show
	_, err = io.Copy(io.MultiWriter(w, newProgress(l.ctx, l.err, "writing", size)), res.Body)
	if why := res.Trailer.Get(errorHeader); err == nil && why != "" {
		err = errors.New(why)
	}
	if err != nil {
		return fmt.Errorf("%s gave no whole backup: %w", used.Holder, err)
	}
	return nil
}

func (l *line) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(l.dir, SocketName))
	if err != nil {
		return nil, err
	}
	return lively{conn}, nil
}

// lively is a connection to somebody who must not fall silent.
type lively struct{ net.Conn }

func (c lively) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(silence))
	return c.Conn.Read(b)
}
