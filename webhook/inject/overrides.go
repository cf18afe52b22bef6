package inject

import (
	"reflect"
	"slices"
	"strings"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// override applies integration.engineOverrides. An entry is ours if wiring
// added or changed it: before and env are how it was. Suppression removes only
// what is ours; overrides replace what is ours, add what neither side has, and
// leave the pod's own alone.
func (w *wiring) override(before *line, env []envVar) error {
	o := w.backend.Spec.Integration.EngineOverrides
	if o == nil {
		return nil
	}
	if flag := ReservedIn(w.adapter.reservedArgs, w.adapter.reservedEnv, o); flag != "" {
		return refuse(v1alpha1.SkipInvalidBackend, "integration.engineOverrides touches %s, which the cache cannot do without: remove it", flag)
	}
	was := before.byFlag()
	if err := w.suppressArgs(o.SuppressArgs, was); err != nil {
		return err
	}
	if err := w.overrideArgs(o.Args, was); err != nil {
		return err
	}
	w.overrideEnv(o, env)
	return nil
}

// ReservedIn is the first entry of overrides that names a reserved flag or
// variable; empty: none does.
func ReservedIn(args, env []string, o *v1alpha1.EngineOverrides) string {
	for _, s := range slices.Concat(o.Args, o.SuppressArgs) {
		if name, ok := flagName(s); ok && slices.Contains(args, name) {
			return name
		}
	}
	for _, v := range o.Env {
		if slices.Contains(env, v.Name) {
			return v.Name
		}
	}
	for _, name := range o.SuppressEnv {
		if slices.Contains(env, name) {
			return name
		}
	}
	return ""
}

// byFlag collects the values of every flag in order.
func (l *line) byFlag() map[string][]string {
	all := make(map[string][]string)
	for _, a := range l.arguments() {
		if a.name != "" {
			all[a.name] = append(all[a.name], a.value)
		}
	}
	return all
}

// owned reports whether wiring added or changed a flag.
func (w *wiring) owned(flag string, was map[string][]string) bool {
	now := w.line.byFlag()[flag]
	return len(now) > 0 && !slices.Equal(now, was[flag])
}

func (w *wiring) suppressArgs(list []string, was map[string][]string) error {
	for _, s := range list {
		flag, ok := flagName(s)
		if !ok || !w.owned(flag, was) {
			continue
		}
		for found := w.line.find(flag); len(found) > 0; found = w.line.find(flag) {
			if err := w.line.replace(found[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *wiring) overrideArgs(list []string, was map[string][]string) error {
	wanted := &line{}
	for _, s := range list {
		wanted.tokens = append(wanted.tokens, token{text: s, raw: s, known: true})
	}
	done := make(map[string]bool)
	for _, a := range wanted.arguments() {
		switch {
		case a.name == "" && !w.dressed():
			w.line.add(a.value)
		case a.name == "" || done[a.name]:
		default:
			done[a.name] = true
			if err := w.overrideFlag(a.name, wanted.all(a.name), was); err != nil {
				return err
			}
		}
	}
	return nil
}

// dressed reports whether the pod has been through this already. One with
// HiCache and no subscriber has no container of ours to tell by.
func (w *wiring) dressed() bool {
	uid := string(w.backend.UID)
	return w.wasOurs || uid != "" && w.pod.Annotations[v1alpha1.AnnotationInjectedByUID] == uid
}

// all are the tokens of every occurrence of a flag.
func (l *line) all(flag string) (tokens []string) {
	for _, a := range l.find(flag) {
		for _, t := range l.tokens[a.at : a.at+a.n] {
			tokens = append(tokens, t.text)
		}
	}
	return tokens
}

func (w *wiring) overrideFlag(flag string, tokens []string, was map[string][]string) error {
	found := w.line.find(flag)
	switch {
	case len(found) > 0 && w.owned(flag, was):
		for i := len(found) - 1; i > 0; i-- {
			if err := w.line.replace(found[i]); err != nil {
				return err
			}
		}
		return w.line.replace(found[0], tokens...)
	case len(found) == 0 && len(was[flag]) == 0:
		w.line.add(tokens...)
	}
	return nil
}

func (w *wiring) overrideEnv(o *v1alpha1.EngineOverrides, was []envVar) {
	engine := w.engine()
	owned := func(v envVar) bool {
		return !slices.ContainsFunc(was, func(have envVar) bool { return reflect.DeepEqual(have, v) })
	}
	for _, name := range o.SuppressEnv {
		engine.Env = slices.DeleteFunc(engine.Env, func(v envVar) bool { return v.Name == strings.TrimSpace(name) && owned(v) })
	}
	for _, v := range o.Env {
		i := slices.IndexFunc(engine.Env, func(have envVar) bool { return have.Name == v.Name })
		switch {
		case i < 0 && !namedAgain(was, v.Name):
			engine.Env = append(engine.Env, *v.DeepCopy())
		case i >= 0 && owned(engine.Env[i]):
			engine.Env[i] = *v.DeepCopy()
		}
	}
}
