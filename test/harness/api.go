package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
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

// object is what the path of a resource is made of.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// ResourceURL is where the hub serves a kind, or one object of it.
func (w *World) ResourceURL(kind, namespace, name string) string {
	url := "http://" + w.Hub.HTTP + apiBase
	switch kind = strings.ToLower(strings.TrimSuffix(kind, "s")); kind {
	case "device", "devicemodel", "configuration", "instance", "secret", "configmap", "event":
		if namespace == "" {
			namespace = "default"
		}
		url += "/namespaces/" + namespace
	}
	url += "/" + kind + "s"
	if name != "" {
		url += "/" + name
	}
	return url
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// Apply creates the objects of a YAML text, or merges them into those that exist.
func (w *World) Apply(ctx context.Context, text []byte) error {
	for _, document := range separator.Split(string(text), -1) {
		if strings.TrimSpace(document) == "" {
			continue
		}
		body, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			return err
		}
		var o object
		if err := json.Unmarshal(body, &o); err != nil {
			return err
		}
		_, err = Call(ctx, http.MethodPost, w.ResourceURL(o.Kind, o.Metadata.Namespace, ""), body)
		var status *StatusError
		if errors.As(err, &status) && status.Code == http.StatusConflict {
			_, err = Call(ctx, http.MethodPatch, w.ResourceURL(o.Kind, o.Metadata.Namespace, o.Metadata.Name), body)
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err)
		}
	}
	return nil
}
