package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// files has the templates and the assets.
//
//go:embed templates assets
var files embed.FS

// bundle is what console.js is made of: one file, whose parts the browser runs in this order.
var bundle = []string{"htmx.min.js", "htmx-sse.min.js", "console.js"}

// asset is a file as it is served.
type asset struct {
	text []byte
	hash string
}

// assets are files by name. A name that has the hash of the content too may be kept by browsers for ever; one without
// is asked for each time.
type assets map[string]asset

// newAssets reads the folder assets of a tree.
func newAssets(tree fs.FS) (assets, error) {
	all := make(assets)
	entries, err := fs.ReadDir(tree, "assets")
	for _, entry := range entries {
		names := []string{entry.Name()}
		if entry.Name() == bundle[len(bundle)-1] {
			names = bundle
		}
		var text []byte
		for _, name := range names {
			part, err := fs.ReadFile(tree, "assets/"+name)
			if err != nil {
				return nil, err
			}
			text = append(append(text, part...), '\n')
		}
		sum := sha256.Sum256(text)
		a := asset{text, hex.EncodeToString(sum[:6])}
		all[entry.Name()], all[a.name(entry.Name())] = a, a
	}
	return all, err
}

// name returns the name of a file with its hash.
func (a asset) name(of string) string {
	kind := path.Ext(of)
	return strings.TrimSuffix(of, kind) + "." + a.hash + kind
}

// path returns where a file is, after the prefix: {{.Prefix}}{{asset "style.css"}}.
func (a assets) path(name string) string { return "/assets/" + a[name].name(name) }

// serve serves one file, and reports whether it exists.
func (a assets) serve(w http.ResponseWriter, r *http.Request, name string) bool {
	file, exists := a[name]
	if !exists {
		return false
	}
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Etag", `"`+file.hash+`"`)
	if strings.Contains(name, file.hash) {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(file.text))
	return true
}
