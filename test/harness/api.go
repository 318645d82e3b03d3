// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

const apiBase = "/apis/edgebus.io/v1alpha1"

// StatusError is an HTTP answer that is no success.
type StatusError struct {
	Code int
	Body string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Code, http.StatusText(e.Code), strings.TrimSpace(e.Body))
}

// Call makes an HTTP request with a JSON body, and returns the answer's.
func Call(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = &StatusError{response.StatusCode, string(text)}
	}
	return text, err
}

// DeviceURL is where the hub serves the Devices of the default namespace, or one of them.
func (w *World) DeviceURL(name string) string {
	url := "http://" + w.Hub.HTTP + apiBase + "/namespaces/default/devices"
	if name != "" {
		url += "/" + name
	}
	return url
}

// API is a client of the hub's API.
func (w *World) API() (*client.Client, error) {
	return client.New(client.Options{Server: "http://" + w.Hub.HTTP, User: w.User, Password: w.Password, Manager: "test", Timeout: 30 * time.Second})
}

// SignedIn is a server in front of the hub's API that signs in every request: kubectl sends no password over plain HTTP. It has to
// be closed.
func (w *World) SignedIn() *httptest.Server {
	hub := &url.URL{Scheme: "http", Host: w.Hub.HTTP}
	return httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(hub)
		r.Out.SetBasicAuth(w.User, w.Password)
	}})
}

// Apply makes the objects of a YAML text what it says.
func (w *World) Apply(ctx context.Context, text []byte) error {
	c, err := w.API()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, d := range client.Documents(text) {
		if d.Err != nil {
			return d.Err
		}
		for _, o := range d.Objects {
			k, err := c.KindOf(ctx, o.TypeMeta)
			if err == nil {
				_, err = c.Apply(ctx, k, cmp.Or(o.Metadata.Namespace, resource.DefaultNamespace), o, client.WriteOptions{})
			}
			if err != nil {
				return fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err)
			}
		}
	}
	return nil
}

// Delete deletes an object of the default namespace, or begins to.
func (w *World) Delete(ctx context.Context, kind, name string) error {
	c, err := w.API()
	if err != nil {
		return err
	}
	defer c.Close()
	k, err := c.Kind(ctx, kind)
	if err == nil {
		_, err = c.Delete(ctx, k, resource.DefaultNamespace, name, client.WriteOptions{})
	}
	return err
}
