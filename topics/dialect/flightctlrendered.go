// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/edgebus/edgebus/topics/resource"
)

// renderedAnnotations are the annotations in which flightctl has the version of what a Device is to apply.
func renderedAnnotations(canonical jsonObject) map[string]any {
	status, _ := canonical["status"].(jsonObject)
	version := status["specVersion"]
	return map[string]any{"renderedVersion": version, "device-controller/renderedVersion": version}
}

// RenderedDevice is what a node is to apply, as flightctl's agent asks for it: its files as a list in v1beta1, which has no
// directories and links, and as an Ignition document in v1alpha1. value gives the content of a file, or says that the reader may not see
// it; then the file stands there without content. left are the paths of what the form can't express.
func RenderedDevice(version, name string, spec resource.RenderedSpec, value func(resource.RenderedFile) (content []byte, secret bool, err error)) (raw []byte, left []string, err error) {
	out := jsonObject{}
	if spec.OS != nil {
		out["os"] = spec.OS
	}
	if len(spec.Resources) > 0 {
		out["resources"] = spec.Resources
	}
	if spec.UpdatePolicy != nil {
		out["updatePolicy"] = spec.UpdatePolicy
	}
	if m := spec.Monitoring; m != nil && m.Systemd != nil {
		out["systemd"] = m.Systemd
	}
	var apps []jsonObject
	for _, a := range spec.Applications {
		files, _, err := fileList(a.Files, value)
		if err != nil {
			return nil, nil, err
		}
		app := jsonObject{"name": a.Name, "appType": a.AppType, "inline": files}
		if len(a.EnvVars) > 0 {
			app["envVars"] = a.EnvVars
		}
		apps = append(apps, app)
	}
	if len(apps) > 0 {
		out["applications"] = apps
	}
	if version == "v1alpha1" {
		out["config"], err = ignitionText(spec.Files, value)
	} else {
		var files []jsonObject
		files, left, err = fileList(spec.Files, value)
		if len(files) > 0 {
			out["config"] = []jsonObject{{"name": "rendered", "inline": files}}
		}
	}
	if err != nil {
		return nil, nil, err
	}
	raw, err = json.Marshal(jsonObject{
		"apiVersion": flightctlGroup + "/" + version, "kind": "Device",
		"metadata": jsonObject{"name": name, "annotations": renderedAnnotations(jsonObject{"status": jsonObject{"specVersion": spec.RenderedVersion}})},
		"spec":     out,
	})
	return raw, left, err
}

// fileList are files as v1beta1 has them.
func fileList(files []resource.RenderedFile, value func(resource.RenderedFile) ([]byte, bool, error)) (list []jsonObject, left []string, err error) {
	list = []jsonObject{}
	for _, f := range files {
		if f.Type != resource.FileRegular {
			left = append(left, f.Path)
			continue
		}
		content, secret, err := value(f)
		if err != nil {
			return nil, nil, err
		}
		entry := jsonObject{"path": f.Path}
		switch {
		case secret:
		case utf8.Valid(content):
			entry["content"] = string(content)
		default:
			entry["content"], entry["contentEncoding"] = base64.StdEncoding.EncodeToString(content), "base64"
		}
		if mode, err := strconv.ParseInt(f.Mode, 8, 32); err == nil {
			entry["mode"] = mode
		}
		if f.User != "" {
			entry["user"] = f.User
		}
		if f.Group != "" {
			entry["group"] = f.Group
		}
		list = append(list, entry)
	}
	return list, left, nil
}

// ignitionText is an Ignition document with all files, directories and links.
func ignitionText(files []resource.RenderedFile, value func(resource.RenderedFile) ([]byte, bool, error)) (string, error) {
	storage := map[string][]jsonObject{}
	for _, f := range files {
		entry := jsonObject{"path": f.Path}
		for name, owner := range map[string]string{"user": f.User, "group": f.Group} {
			if id, err := strconv.Atoi(owner); err == nil {
				entry[name] = jsonObject{"id": id}
			} else if owner != "" {
				entry[name] = jsonObject{"name": owner}
			}
		}
		if mode, err := strconv.ParseInt(f.Mode, 8, 32); err == nil {
			entry["mode"] = mode
		}
		kind := "files"
		switch f.Type {
		case resource.FileDirectory:
			kind = "directories"
		case resource.FileLink:
			kind, entry["target"], entry["overwrite"] = "links", f.Target, !f.Keep
		default:
			entry["overwrite"] = !f.Keep
			content, secret, err := value(f)
			if err != nil {
				return "", err
			}
			if !secret {
				entry["contents"] = jsonObject{"source": "data:;base64," + base64.StdEncoding.EncodeToString(content)}
			}
		}
		storage[kind] = append(storage[kind], entry)
	}
	text, err := json.Marshal(jsonObject{"ignition": jsonObject{"version": "3.4.0"}, "storage": storage})
	return string(text), err
}
