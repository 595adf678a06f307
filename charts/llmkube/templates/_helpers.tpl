{{/* Names are cut so that a pod's name, with its two random parts, is a DNS label and no part of it is lost. */}}
{{- define "llmkube.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "llmkube.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" }}
{{- else if contains (include "llmkube.name" .) .Release.Name }}
{{- .Release.Name | trunc 30 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "llmkube.name" .) | trunc 30 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "llmkube.controller" -}}
{{ include "llmkube.fullname" . }}-controller
{{- end }}

{{- define "llmkube.agent" -}}
{{ include "llmkube.fullname" . }}-agent
{{- end }}

{{- define "llmkube.controllerAccount" -}}
{{- default (include "llmkube.controller" .) .Values.controller.serviceAccount.name }}
{{- end }}

{{- define "llmkube.agentAccount" -}}
{{- default (include "llmkube.agent" .) .Values.agents.serviceAccount.name }}
{{- end }}

{{/* Selector labels. They never change in a release, because a Deployment's selector is immutable. */}}
{{- define "llmkube.selector" -}}
app.kubernetes.io/name: {{ include "llmkube.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: controller
{{- end }}

{{/* Labels of every object. These take precedence over commonLabels, because selectors use them. */}}
{{- define "llmkube.labels" -}}
{{- $ours := dict
  "app.kubernetes.io/name" (include "llmkube.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "llmkube"
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
}}
{{- toYaml (merge $ours .Values.commonLabels) }}
{{- end }}

{{/* Labels of the controller's pods, without those that change with the chart's version, which would restart the pods. */}}
{{- define "llmkube.podLabels" -}}
{{- $ours := include "llmkube.selector" . | fromYaml }}
{{- $_ := set $ours "app.kubernetes.io/part-of" "llmkube" }}
{{- toYaml (merge $ours .Values.controller.podLabels .Values.commonLabels) }}
{{- end }}

{{- define "llmkube.gateway" -}}
{{ include "llmkube.fullname" . }}-gateway
{{- end }}

{{- define "llmkube.gatewayAccount" -}}
{{- default (include "llmkube.gateway" .) .Values.gateway.serviceAccount.name }}
{{- end }}

{{- define "llmkube.gatewaySelector" -}}
{{- toYaml (set (include "llmkube.selector" . | fromYaml) "app.kubernetes.io/component" "gateway") }}
{{- end }}

{{/* Labels of the front door's objects and, without the chart's version, of its pods. */}}
{{- define "llmkube.gatewayLabels" -}}
{{- toYaml (merge (include "llmkube.gatewaySelector" . | fromYaml) (include "llmkube.labels" . | fromYaml)) }}
{{- end }}

{{- define "llmkube.gatewayPodLabels" -}}
{{- $ours := include "llmkube.gatewaySelector" . | fromYaml }}
{{- $_ := set $ours "app.kubernetes.io/part-of" "llmkube" }}
{{- toYaml (merge $ours .Values.gateway.podLabels .Values.commonLabels) }}
{{- end }}

{{/* The namespaces that the front door serves, as a JSON list; empty: all. */}}
{{- define "llmkube.gatewayNamespaces" -}}
{{- $own := without (list .Values.controller.namespace) "" }}
{{- toJson (default $own .Values.gateway.namespaces) }}
{{- end }}

{{/* OpenTelemetry's variables of programs that answer requests; the controller passes its own on to routers. */}}
{{- define "llmkube.traceEnv" -}}
{{- range $name, $value := .Values.traces }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "llmkube.noImage" -}}
image.repository is empty, and LLMKube publishes no image. From a clone of its sources, build and push one, and package the chart with it:
  docker buildx build --push --build-arg BASE=python:3.13-slim@sha256:... -t REGISTRY/llmkube:{{ .Chart.AppVersion }} .
  docker buildx build --push --build-arg BASE=python:3.13-slim@sha256:... --build-arg EXTRAS=llama --target llama-server -t REGISTRY/llmkube-llama:{{ .Chart.AppVersion }} .
  make chart IMAGE=REGISTRY/llmkube@sha256:... CPU_ENGINE=REGISTRY/llmkube-llama@sha256:...
Or set the image here: --set image.registry=REGISTRY,image.repository=llmkube,image.digest=sha256:...
{{- end }}

{{- define "llmkube.image" -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry }}
{{- $name := required (include "llmkube.noImage" .) .Values.image.repository }}
{{- if $registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $name .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The image of llama.cpp's server on CPUs; empty if the operator sets another one, or disables this one. */}}
{{- define "llmkube.cpuEngine" -}}
{{- with .Values.workloads.cpuEngine }}
{{- $named := or (hasKey $.Values.workloads.images "llamacpp") (hasKey $.Values.workloads.images "llamacpp-cpu") }}
{{- $argued := regexMatch "--engine-image[= ]llamacpp(-cpu)?=" (join " " $.Values.controller.extraArgs) }}
{{- if and .enabled (not $named) (not $argued) }}
{{- $registry := coalesce $.Values.global.imageRegistry .registry $.Values.image.registry }}
{{- $name := default (printf "%s-llama" $.Values.image.repository) .repository }}
{{- if $registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ end }}
{{- if .digest }}
{{- printf "%s@%s" $name .digest }}
{{- else }}
{{- printf "%s:%s" $name (coalesce .tag $.Values.image.tag $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Roles and bindings as `llmkube rbac` prints them, under the release's names. Takes root, program, name, account, namespace. */}}
{{- define "llmkube.roles" -}}
{{- $root := .root }}
{{- $scope := ternary "namespace" "cluster" (ne .namespace "") }}
{{- $text := $root.Files.Get (printf "files/rbac/%s-%s.yaml" .program $scope) }}
{{- $text = replace (printf "llmkube-%s" .program) .name $text }}
{{- $text = replace "@RELEASE_NAMESPACE@" $root.Release.Namespace $text }}
{{- $text = replace "@SERVED_NAMESPACE@" .namespace $text }}
{{- $labels := include "llmkube.labels" $root | fromYaml }}
{{- $account := .account }}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . }}
{{- if not (has $object.kind (list "Namespace" "ServiceAccount")) }}
{{- $_ := set $object.metadata "labels" $labels }}
{{- range $object.subjects }}
{{- $_ := set . "name" $account }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end }}

{{/* The namespace that agents with the shared account serve; empty: all of them. */}}
{{- define "llmkube.agentNamespace" -}}
{{- if not .Values.agents.allNamespaces }}
{{- $said := default .Values.controller.namespace .Values.agents.namespace }}
{{- required "agents.rbac needs agents.namespace, the namespace that agents serve (or agents.allNamespaces=true)" $said }}
{{- end }}
{{- end }}

{{- define "llmkube.monitored" -}}
{{- if or .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled }}true{{ end }}
{{- end }}

{{- /* Prefix of spec.priority in the name of a PriorityClass. */}}
{{- define "llmkube.priorityClassPrefix" -}}
{{- ternary "llmkube-" "llmkube-service-" .Values.priorityClasses.outrankPods -}}
{{- end }}
