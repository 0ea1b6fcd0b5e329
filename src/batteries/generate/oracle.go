package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane"
)

// request is one line given to the oracle.
type request struct {
	Op        string          `json:"op"`
	Group     string          `json:"group"`
	Version   string          `json:"version"`
	Kind      string          `json:"kind"`
	Object    json.RawMessage `json:"object"`
	Old       json.RawMessage `json:"old,omitempty"`
	To        string          `json:"to,omitempty"`
	Namespace string          `json:"namespace,omitempty"`
	Strict    bool            `json:"strict,omitempty"`
}

// answer is what upstream makes of it.
type answer struct {
	Defaulted    json.RawMessage   `json:"defaulted,omitempty"`
	Prepared     json.RawMessage   `json:"prepared,omitempty"`
	Errors       []validationError `json:"errors,omitempty"`
	Row          []any             `json:"row,omitempty"`
	Warnings     []string          `json:"warnings,omitempty"`
	Converted    json.RawMessage   `json:"converted,omitempty"`
	Status       *metav1.Status    `json:"status,omitempty"`
	DecodeError  string            `json:"decodeError,omitempty"`
	StrictErrors []string          `json:"strictErrors,omitempty"`
	Failure      string            `json:"failure,omitempty"`
}

type validationError struct {
	Type    string `json:"type"`
	Field   string `json:"field"`
	Bad     any    `json:"bad,omitempty"`
	Detail  string `json:"detail"`
	Message string `json:"message"`
	Origin  string `json:"origin,omitempty"`
}

const (
	fixedUID  = types.UID("6b1e0b6c-4c55-4a5c-8a39-0f4d3f1d7e10")
	fixedTime = "2024-05-06T07:08:09Z"
)

// subject is a served kind with the storage behind it.
type subject struct {
	gvk        schema.GroupVersionKind
	resource   string
	namespaced bool
	group      *groupVersion
	store      *genericregistry.Store
	storage    rest.Storage
	codecs     serializer.CodecFactory
}

type oracle struct {
	world    *world
	subjects map[schema.GroupVersionKind]*subject
}

// newOracle knows the kinds that are served by default.
func newOracle() (*oracle, error) {
	w, err := newWorld(controlplane.DefaultAPIResourceConfigSource())
	if err != nil {
		return nil, err
	}
	return oracleOf(w)
}

func oracleOf(w *world) (*oracle, error) {
	o := &oracle{world: w, subjects: map[schema.GroupVersionKind]*subject{}}
	for gv, group := range w.groups {
		codecs := serializer.NewCodecFactory(group.scheme)
		for resource, stored := range group.storage {
			if strings.Contains(resource, "/") {
				continue
			}
			kinds, _, err := group.scheme.ObjectKinds(stored.New())
			if err != nil {
				return nil, err
			}
			gvk := gv.WithKind(kinds[0].Kind)
			s := &subject{gvk: gvk, resource: resource, group: group, store: storeOf(stored), storage: stored, codecs: codecs}
			if scoper, ok := stored.(rest.Scoper); ok {
				s.namespaced = scoper.NamespaceScoped()
			}
			o.subjects[gvk] = s
		}
	}
	return o, nil
}

func runOracle(arguments []string) error {
	flags := flag.NewFlagSet("oracle", flag.ContinueOnError)
	previews := flags.Bool("previews", false, "also know the kinds that are off by default")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	known := newOracle
	if *previews {
		known = newPreviewOracle
	}
	o, err := known()
	if err != nil {
		return err
	}
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(output)
	encoder.SetEscapeHTML(false)
	for {
		line, readErr := input.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var req request
			reply := &answer{}
			if err := json.Unmarshal(line, &req); err != nil {
				reply.Failure = err.Error()
			} else {
				reply = o.ask(&req)
			}
			if err := encoder.Encode(reply); err != nil {
				return err
			}
			if err := output.Flush(); err != nil {
				return err
			}
		}
		if readErr != nil {
			return nil
		}
	}
}

// ask answers one request. A panic in upstream's code is part of the answer.
func (o *oracle) ask(req *request) (reply *answer) {
	reply = &answer{}
	defer func() {
		if r := recover(); r != nil {
			reply.Failure = fmt.Sprintf("panic: %v", r)
			if os.Getenv("GENERATE_DEBUG") != "" {
				debug.PrintStack()
			}
		}
	}()
	s, known := o.subjects[schema.GroupVersionKind{Group: req.Group, Version: req.Version, Kind: req.Kind}]
	if !known {
		reply.Failure = "kind is not served"
		return reply
	}
	if err := o.run(req, s, reply); err != nil {
		reply.Failure = err.Error()
	}
	return reply
}

func (o *oracle) run(req *request, s *subject, reply *answer) error {
	if req.Op == "decode" {
		var body string
		if json.Unmarshal(req.Object, &body) == nil {
			req.Object = json.RawMessage(body)
		}
		s.decodeOnly(req, reply)
		return nil
	}
	versioned, err := s.decode(req.Object)
	if err != nil {
		reply.DecodeError = err.Error()
		return nil
	}
	s.group.scheme.Default(versioned)
	if reply.Defaulted, err = bare(versioned); err != nil {
		return err
	}
	reply.Defaulted = blankNow(reply.Defaulted)
	internal, err := s.internal(versioned)
	if err != nil {
		return err
	}
	switch req.Op {
	case "default":
		return nil
	case "row":
		return s.row(internal, reply)
	case "convert":
		return s.convert(internal, req.To, reply)
	case "create":
		return s.create(internal, req, reply)
	case "update":
		return s.update(internal, req, s.store, reply)
	case "status", "resize", "ephemeralcontainers", "approval", "finalize":
		return s.update(internal, req, s.subStore(req.Op), reply)
	}
	return fmt.Errorf("unknown op %q", req.Op)
}

func (s *subject) decode(body []byte) (runtime.Object, error) {
	gvk := s.gvk
	object, err := s.group.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	decoded, _, err := s.codecs.UniversalDeserializer().Decode(body, &gvk, object)
	return decoded, err
}

// decodeOnly repeats the request handler's decoding, with the strict check it
// makes for fieldValidation Strict and Warn.
func (s *subject) decodeOnly(req *request, reply *answer) {
	info, _ := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	gvk := s.gvk
	internalVersion := schema.GroupVersion{Group: s.gvk.Group, Version: runtime.APIVersionInternal}
	into := s.storage.New()
	for _, strict := range []bool{false, true} {
		chosen := info.Serializer
		if strict {
			chosen = info.StrictSerializer
		}
		object, actual, err := s.codecs.DecoderToVersion(chosen, internalVersion).Decode(req.Object, &gvk, into)
		if strict {
			if strictError, ok := runtime.AsStrictDecodingError(err); ok {
				for _, one := range strictError.Errors() {
					reply.StrictErrors = append(reply.StrictErrors, one.Error())
				}
			}
			continue
		}
		if err != nil {
			reply.DecodeError = err.Error()
			status := apierrors.APIStatus(nil)
			if errors.As(transformDecodeError(s.group.scheme, err, into, actual, req.Object), &status) {
				full := status.Status()
				reply.Status = &full
			}
			continue
		}
		if versioned, err := s.group.scheme.ConvertToVersion(object, s.gvk.GroupVersion()); err == nil {
			reply.Defaulted, _ = bare(versioned)
			reply.Defaulted = blankNow(reply.Defaulted)
		}
	}
}

func (s *subject) internal(versioned runtime.Object) (runtime.Object, error) {
	return s.group.scheme.ConvertToVersion(versioned, schema.GroupVersion{Group: s.gvk.Group, Version: runtime.APIVersionInternal})
}

// bare encodes an object without kind and apiVersion, byte for byte as upstream would.
func bare(object runtime.Object) (json.RawMessage, error) {
	object = object.DeepCopyObject()
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return json.Marshal(object)
}

// plainJSON is Go's JSON without the escapes for HTML.
func plainJSON(value any) (json.RawMessage, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return json.RawMessage(bytes.TrimSpace(buffer.Bytes())), nil
}

func (s *subject) encoded(internal runtime.Object) (json.RawMessage, error) {
	versioned, err := s.group.scheme.ConvertToVersion(internal, s.gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	text, err := bare(versioned)
	if err != nil {
		return nil, err
	}
	return blankClock(text), nil
}

var timestamp = regexp.MustCompile(`"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z)"`)

// blankClock replaces what depends on the moment of the run.
func blankClock(text []byte) []byte {
	text = bytes.ReplaceAll(text, []byte(`"`+fixedTime+`"`), []byte(`"<time>"`))
	text = bytes.ReplaceAll(text, []byte(`"`+fixedUID+`"`), []byte(`"<uid>"`))
	return blankNow(text)
}

// blankNow replaces times close to the moment of the run.
func blankNow(text []byte) []byte {
	return timestamp.ReplaceAllFunc(text, func(match []byte) []byte {
		at, err := time.Parse(time.RFC3339Nano, string(bytes.Trim(match, `"`)))
		if err == nil && time.Since(at).Abs() < 48*time.Hour {
			return []byte(`"<time>"`)
		}
		return match
	})
}

type recorder struct{ texts []string }

func (r *recorder) AddWarning(_, text string) { r.texts = append(r.texts, text) }

func (s *subject) context(namespace, verb, sub, name string, warnings *recorder) context.Context {
	prefix := "apis"
	if s.gvk.Group == "" {
		prefix = "api"
	}
	ctx := warning.WithWarningRecorder(context.Background(), warnings)
	ctx = genericapirequest.WithNamespace(ctx, namespace)
	ctx = genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters", "system:authenticated"}})
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIPrefix: prefix, APIGroup: s.gvk.Group,
		APIVersion: s.gvk.Version, Resource: s.resource, Subresource: sub, Namespace: namespace, Name: name})
}

func (s *subject) namespace(req *request, object metav1.Object) string {
	if !s.namespaced {
		return ""
	}
	if req.Namespace != "" {
		return req.Namespace
	}
	if object.GetNamespace() != "" {
		return object.GetNamespace()
	}
	return "default"
}

func (s *subject) create(internal runtime.Object, req *request, reply *answer) error {
	strategy := s.createStrategy()
	if strategy == nil {
		return s.createVirtual(internal, req, reply)
	}
	accessor := internal.(metav1.ObjectMetaAccessor).GetObjectMeta()
	warnings := &recorder{}
	namespace := s.namespace(req, accessor)
	ctx := s.context(namespace, "create", "", accessor.GetName(), warnings)
	rest.EnsureObjectNamespaceMatchesRequestNamespace(rest.ExpectedNamespaceForScope(namespace, s.namespaced), accessor)
	stamp, _ := time.Parse(time.RFC3339, fixedTime)
	accessor.SetUID(fixedUID)
	accessor.SetCreationTimestamp(metav1.NewTime(stamp))
	accessor.SetDeletionTimestamp(nil)
	accessor.SetDeletionGracePeriodSeconds(nil)
	accessor.SetSelfLink("")
	if accessor.GetGenerateName() != "" && accessor.GetName() == "" {
		accessor.SetName(accessor.GetGenerateName() + "x7x7x")
	}
	if s.store.BeginCreate != nil {
		before := internal.DeepCopyObject()
		finish, err := s.store.BeginCreate(ctx, internal, &metav1.CreateOptions{})
		if err != nil {
			return s.conclude(err, internal, causesOf(err), warnings, reply)
		}
		finish(ctx, false)
		settleAllocations(before, internal)
	}
	err := rest.BeforeCreate(strategy, ctx, internal)
	if err := s.conclude(err, internal, func() field.ErrorList { return rest.ValidateCreate(ctx, internal, strategy) }, warnings, reply); err != nil {
		return err
	}
	return s.finish(internal, reply)
}

// createVirtual lets a kind that is never stored answer itself.
func (s *subject) createVirtual(internal runtime.Object, req *request, reply *answer) error {
	creater, ok := s.storage.(rest.Creater)
	if !ok {
		return errors.New("kind cannot be created")
	}
	accessor := internal.(metav1.ObjectMetaAccessor).GetObjectMeta()
	warnings := &recorder{}
	ctx := s.context(s.namespace(req, accessor), "create", "", accessor.GetName(), warnings)
	result, err := creater.Create(ctx, internal, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return s.conclude(err, internal, causesOf(err), warnings, reply)
	}
	reply.Prepared, err = s.encoded(result)
	return err
}

func (s *subject) createStrategy() rest.RESTCreateStrategy {
	if s.store != nil {
		return s.store.CreateStrategy
	}
	return nil
}

func (s *subject) conclude(err error, _ runtime.Object, again func() field.ErrorList, warnings *recorder, reply *answer) error {
	reply.Warnings = warnings.texts
	if err == nil {
		return nil
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return err
	}
	full := status.Status()
	reply.Status = &full
	if apierrors.IsInvalid(err) {
		for _, one := range again() {
			reply.Errors = append(reply.Errors, validationError{Type: string(one.Type), Field: one.Field, Bad: safeBad(one), Detail: one.Detail, Message: one.Error(), Origin: one.Origin})
		}
	}
	return nil
}

// causesOf is for errors that are known only by their Status.
func causesOf(err error) func() field.ErrorList {
	return func() field.ErrorList {
		var out field.ErrorList
		status := apierrors.APIStatus(nil)
		if errors.As(err, &status) && status.Status().Details != nil {
			for _, cause := range status.Status().Details.Causes {
				one := &field.Error{Type: field.ErrorType(cause.Type), Field: cause.Field, BadValue: field.OmitValueType{}}
				one.Detail = strings.TrimPrefix(cause.Message, one.Type.String()+": ")
				out = append(out, one)
			}
		}
		return out
	}
}

// What allocators choose at random is replaced by these.
const (
	settledIP         = "10.0.0.100"
	settledNodePort   = 30100
	settledHealthPort = 30200
)

// settleAllocations makes the choices of upstream's address and port allocators repeatable.
func settleAllocations(before, after runtime.Object) {
	old, isService := before.(*api.Service)
	if !isService {
		return
	}
	service := after.(*api.Service)
	if old.Spec.ClusterIP == "" && service.Spec.ClusterIP != "" && service.Spec.ClusterIP != api.ClusterIPNone && len(old.Spec.ClusterIPs) == 0 {
		service.Spec.ClusterIP = settledIP
		service.Spec.ClusterIPs = []string{settledIP}
	}
	for i := range service.Spec.Ports {
		if i < len(old.Spec.Ports) && old.Spec.Ports[i].NodePort == 0 && service.Spec.Ports[i].NodePort != 0 {
			service.Spec.Ports[i].NodePort = int32(settledNodePort + i)
		}
	}
	if old.Spec.HealthCheckNodePort == 0 && service.Spec.HealthCheckNodePort != 0 {
		service.Spec.HealthCheckNodePort = settledHealthPort
	}
}

// safeBad keeps the rejected value where it is plain data.
func safeBad(one *field.Error) any {
	switch one.BadValue.(type) {
	case string, bool, int, int32, int64, float64:
		return one.BadValue
	}
	return nil
}

// stored is the object as it comes back from the store: encoded and decoded by
// upstream's storage codec, which drops empty lists and defaults once more.
func (s *subject) stored(internal runtime.Object) (runtime.Object, error) {
	codec := s.store.Storage.Codec
	text, err := runtime.Encode(codec, internal)
	if err != nil {
		return nil, fmt.Errorf("encode for storage: %w", err)
	}
	return runtime.Decode(codec, text)
}

// finish adds the prepared object and its table row.
func (s *subject) finish(internal runtime.Object, reply *answer) error {
	var err error
	if reply.Status == nil {
		if internal, err = s.stored(internal); err != nil {
			return err
		}
	}
	if reply.Prepared, err = s.encoded(internal); err != nil {
		return err
	}
	if reply.Status != nil {
		return nil
	}
	return s.row(internal, reply)
}

// subStore is the store behind a subresource, nil if the kind has none such.
func (s *subject) subStore(sub string) *genericregistry.Store {
	return storeOf(s.group.storage[s.resource+"/"+sub])
}

func (s *subject) update(internal runtime.Object, req *request, store *genericregistry.Store, reply *answer) error {
	sub := ""
	if req.Op != "update" {
		sub = req.Op
	}
	if store == nil || store.UpdateStrategy == nil {
		return errors.New("kind has no strategy for this update")
	}
	versionedOld, err := s.decode(req.Old)
	if err != nil {
		return fmt.Errorf("old: %w", err)
	}
	s.group.scheme.Default(versionedOld)
	old, err := s.internal(versionedOld)
	if err != nil {
		return err
	}
	stamp, _ := time.Parse(time.RFC3339, fixedTime)
	oldMeta, newMeta := old.(metav1.ObjectMetaAccessor).GetObjectMeta(), internal.(metav1.ObjectMetaAccessor).GetObjectMeta()
	for _, accessor := range []metav1.Object{oldMeta, newMeta} {
		accessor.SetResourceVersion("1")
	}
	oldMeta.SetUID(fixedUID)
	oldMeta.SetCreationTimestamp(metav1.NewTime(stamp))
	warnings := &recorder{}
	namespace := s.namespace(req, oldMeta)
	if s.namespaced {
		oldMeta.SetNamespace(namespace)
	}
	ctx := s.context(namespace, "update", sub, oldMeta.GetName(), warnings)
	if store.BeginUpdate != nil && sub == "" {
		before := internal.DeepCopyObject()
		finish, err := store.BeginUpdate(ctx, internal, old, &metav1.UpdateOptions{})
		if err != nil {
			return s.conclude(err, internal, causesOf(err), warnings, reply)
		}
		finish(ctx, false)
		settleAllocations(before, internal)
	}
	err = rest.BeforeUpdate(store.UpdateStrategy, ctx, internal, old)
	if err := s.conclude(err, internal, func() field.ErrorList { return rest.ValidateUpdate(ctx, internal, old, store.UpdateStrategy) }, warnings, reply); err != nil {
		return err
	}
	return s.finish(internal, reply)
}

func (s *subject) convert(internal runtime.Object, to string, reply *answer) error {
	converted, err := s.group.scheme.ConvertToVersion(internal, schema.GroupVersion{Group: s.gvk.Group, Version: to})
	if err != nil {
		return err
	}
	reply.Converted, err = bare(converted)
	return err
}

var ageColumns = map[string]bool{"Age": true, "Last Seen": true, "First Seen": true, "Duration": true, "TimeAdded": true, "Completed": true}
var ageText = regexp.MustCompile(`^-?(\d+[ydhms])+$`)
var agoText = regexp.MustCompile(`\((\d+[ydhms])+ ago\)`)

// row prints the object; what depends on the clock reads <age>.
func (s *subject) row(internal runtime.Object, reply *answer) error {
	convertor, ok := s.storage.(rest.TableConvertor)
	if !ok {
		return nil
	}
	shown := internal.DeepCopyObject()
	shown.(metav1.ObjectMetaAccessor).GetObjectMeta().SetCreationTimestamp(metav1.Time{})
	table, err := convertor.ConvertToTable(s.context("default", "get", "", "", &recorder{}), shown, &metav1.TableOptions{})
	if err != nil {
		return fmt.Errorf("row: %w", err)
	}
	reply.Row = table.Rows[0].Cells
	for i, column := range table.ColumnDefinitions {
		text, isText := reply.Row[i].(string)
		if !isText {
			continue
		}
		if ageColumns[column.Name] && ageText.MatchString(text) {
			reply.Row[i] = "<age>"
		} else {
			reply.Row[i] = agoText.ReplaceAllString(text, "(<age> ago)")
		}
	}
	return nil
}
